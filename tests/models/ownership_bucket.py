"""The ownership model's collector, and its reader of the bucket (rules F1 to F4, G1, G2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tests.models.explorer import Violation
from tests.models.ownership_world import (
    BROKERS,
    Checkpoint,
    Handover,
    Limits,
    Merged,
    Missing,
    Reader,
    Search,
    World,
    floor,
    found_at_once,
    look_into,
    newest,
    put,
    replay,
    values_of,
)

Steps: TypeAlias = Iterator[tuple[str, World]]
Mark: TypeAlias = tuple[int, int | Checkpoint | Merged | Handover]


def superfluous(world: World, variant: str) -> Iterator[Mark]:
    """The objects that a collector may mark (F1) by its reads, and their owners."""
    base, search = found_at_once(world, variant)
    needed = [e for e in base.image.extents if e.offset >= len(world.table)]
    referred = {(e.broker, e.slot) for e in needed if not e.merged}
    place = search.number
    for broker in range(BROKERS):
        passed = broker in world.retired and all(t.broker != broker for t in world.tenures[place:])
        if variant == "retired WALs deleted too early":
            passed = broker in world.retired and base.tenure.broker != broker
        limit = floor(world, broker)
        if passed or variant == "deletes above the floor":
            limit = len(world.wals[broker])
        for slot, entry in enumerate(world.wals[broker][:limit]):
            if entry is None:
                continue
            no_record = entry.image is not None or bool(entry.moved)
            in_table = no_record or entry.offset < len(world.table)
            unreferred = (broker, slot) not in referred and entry.epoch <= base.tenure.epoch
            if in_table or unreferred or variant == "deletes objects that a base refers to":
                yield broker, slot
        for checkpoint in world.checkpoints[broker]:
            if (
                checkpoint != newest(world, broker)
                or passed
                or variant == "deletes the newest checkpoint"
            ):
                yield broker, checkpoint
        kept = {e.slot for e in needed if e.merged and e.broker == broker}
        if not passed:
            kept |= unsettled(world, broker, variant)
        for number, held in enumerate(world.merged[broker]):
            if held is not None and number not in kept:
                yield broker, Merged(number)
    for number, handed in enumerate(world.handovers):
        if handed is None:
            continue
        # A living giver may still name its object; a fenced one cannot (rule A4).
        giver = world.brokers[handed[0]]
        may_name = giver.phase == "giving" and handed[0] not in world.fenced
        is_needed = (may_name and giver.handover == number) or any(
            tenure.handover == number for tenure in world.tenures
        )
        if not is_needed or variant == "hand-over objects go before Opened":
            yield handed[0], Handover(number)


def unsettled(world: World, broker: int, variant: str) -> set[int]:
    """A broker's merged objects that no base needs to name yet: those that its WAL names from the
    floor on, and the next one, which only the broker knows. All of them, if the broker is dead."""
    me = world.brokers[broker]
    # That variant breaks an invariant even if no merged object is ever deleted.
    if me.phase == "dead" or variant == "merge without an entry in the WAL":
        return set(range(len(world.merged[broker])))
    named = [
        e for entry in world.wals[broker][floor(world, broker) :] if entry for e in entry.moved
    ]
    if variant == "merged objects go that a WAL names above its floor":
        named = []
    if me.merge is not None and variant != "merged objects go that are not named yet":
        named += me.merge
    return {extent.slot for extent in named}


def collector_steps(world: World, variant: str) -> Steps:
    """Mark objects. Delete marked objects at any later time."""
    for mark in superfluous(world, variant):
        if mark not in world.marked:
            yield f"mark {mark}", world._replace(marked=world.marked | {mark})
    for mark in world.marked:
        broker, what = mark
        after = world._replace(marked=world.marked - {mark})
        if isinstance(what, Merged):
            objects = put(world.merged[broker], what.number, None)
            yield f"delete {mark}", after._replace(merged=put(world.merged, broker, objects))
        elif isinstance(what, Handover):
            handovers = put(world.handovers, what.number, None)
            yield f"delete {mark}", after._replace(handovers=handovers)
        elif isinstance(what, int):
            slots = put(world.wals[broker], what, None)
            yield f"delete {mark}", after._replace(wals=put(world.wals, broker, slots))
        else:
            left = world.checkpoints[broker] - {what}
            yield (
                f"delete {mark}",
                after._replace(checkpoints=put(world.checkpoints, broker, left)),
            )


def reader_steps(world: World, limits: Limits, variant: str) -> Steps:
    """The table, then the metadata log, then WALs, then the metadata log again (G1, G2)."""
    reader = world.reader
    if reader is None:
        if world.used.reads < limits.reads:
            used = world.used._replace(reads=world.used.reads + 1)
            begun = Reader(world.table, len(world.truth))
            yield "reader: table", world._replace(reader=begun, used=used)
        return

    def to(name: str, search: Search | None) -> tuple[str, World]:
        return f"reader: {name}", world._replace(reader=reader._replace(search=search))

    restart = "reader: restart", world._replace(reader=Reader(world.table, reader.least))
    search = reader.search
    if search is None:
        last = len(world.tenures) - 1
        yield to("metadata", Search(world.tenures, world.retired, last, None))
        return
    if not search.looked:
        broker = search.tenures[search.number].broker
        looked = search._replace(checkpoint=newest(world, broker), looked=True)
        yield to("look for a checkpoint", looked)
        return
    try:
        outcome = look_into(world, search, variant)
        if isinstance(outcome, Search):
            yield to("look into the tenure before", outcome)
            return
        image = replay(world, search, outcome, len(reader.table), variant)
        unread = "reader takes a table older than the base"
        if outcome.image.table_next > len(reader.table) and variant != unread:
            yield restart
            return
        again = "reader does not look at the metadata again"
        if search.tenures != world.tenures and variant != again:
            yield restart
            return
        seen = values_of(world, reader.table, image)
    except Missing:
        yield restart
        return
    if seen != world.truth[: len(seen)] or len(seen) < reader.least:
        raise Violation(f"a reader saw {seen}, the log was at least {world.truth[: reader.least]}")
    yield "reader: done", world._replace(reader=None)
