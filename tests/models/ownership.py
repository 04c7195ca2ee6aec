"""A model of a partition's ownership: tenures, hand-over, fencing, checkpoints, rolls, merges,
deletion, and a reader of the bucket (rules C to G).

One partition and three incarnations; any of them may stall between two steps and wake up much
later. The WAL's own fencing is modelled in `fencing`, so here an append to a WAL succeeds or meets
the seal. The metadata log is a sequence of atomic, validated appends. Whatever reads several
objects reads them in several steps, so that anything may happen in between.

In every state: an offset is given out once, an opener rebuilds the whole log, the table holds a
prefix of the log, a reader of the bucket sees a prefix that is no older than its start, and from
the bucket alone the whole log can be recovered.

    python -m tests.models.ownership [STATES]     the protocol, breadth first
    python -m tests.models.ownership --walks      long random runs with wider limits
    python -m tests.models.ownership --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all
from tests.models.ownership_world import (
    BROKERS,
    VARIANTS,
    WIDE,
    Checkpoint,
    Entry,
    Extent,
    Image,
    Limits,
    Local,
    Merged,
    Missing,
    Reader,
    Search,
    Tenure,
    World,
    beginning,
    check,
    floor,
    found_at_once,
    look_into,
    newest,
    put,
    relocated,
    replay,
    value_at,
    values_of,
)

Steps: TypeAlias = Iterator[tuple[str, World]]

# What brokers do.


class Actor(NamedTuple):
    """A broker that may take a step."""

    world: World
    limits: Limits
    variant: str
    number: int

    @property
    def me(self) -> Local:
        return self.world.brokers[self.number]

    @property
    def meets_seal(self) -> bool:
        return self.number in self.world.sealed and self.variant != "no seal"

    def to(self, name: str, local: Local, world: World | None = None) -> tuple[str, World]:
        """The world when this broker has done something."""
        after = world or self.world
        brokers = put(after.brokers, self.number, local)
        return f"{name} by {self.number}", after._replace(brokers=brokers)

    def write(self, entry: Entry) -> World:
        """The world with one more slot in this broker's WAL."""
        world = self.world
        slots = (*world.wals[self.number], entry)
        return world._replace(wals=put(world.wals, self.number, slots))


def append_steps(actor: Actor) -> Steps:
    """Open a tenure; append a record. A broker that meets its seal ends itself."""
    world, me, variant = actor.world, actor.me, actor.variant
    accepts = (
        me.phase == "owner"
        or (me.phase == "loaded" and variant == "accepts without an opening image")
        or (me.phase == "giving" and variant == "accepts while giving away")
    )
    if accepts and world.used.appends < actor.limits.appends:
        if actor.meets_seal:
            yield actor.to("append meets the seal", Local("dead"))
        else:
            offset = me.image.next
            if offset != len(world.truth):
                raise Violation(
                    f"broker {actor.number} gives out offset {offset}, the log has"
                    f" {len(world.truth)}"
                )
            value = offset * 10 + actor.number
            extent = Extent(offset, actor.number, len(world.wals[actor.number]))
            image = me.image._replace(next=offset + 1, extents=(*me.image.extents, extent))
            after = actor.write(Entry(me.epoch, None, offset, value))._replace(
                truth=(*world.truth, value),
                used=world.used._replace(appends=world.used.appends + 1),
            )
            yield actor.to("append", me._replace(image=image), after)
    if me.phase == "loaded":
        if actor.meets_seal:
            yield actor.to("opening meets the seal", Local("dead"))
        else:
            opened = actor.write(Entry(me.epoch, me.image))
            yield actor.to("opening image", me._replace(phase="owner"), opened)


def checkpoint_steps(actor: Actor) -> Steps:
    """A checkpoint at the durable end: of what it leads, opened or not, also while giving away."""
    world, me, number = actor.world, actor.me, actor.number
    if world.written[number] == actor.limits.checkpoints or me.phase in ("dead", "opening"):
        return
    left_out = me.phase == "giving" and actor.variant == (
        "checkpoint leaves out what is being given away"
    )
    slot = len(world.wals[number])
    if me.phase == "idle" or left_out:
        checkpoint = Checkpoint(slot, -1, Image())
    else:
        checkpoint = Checkpoint(slot, me.epoch, me.image)
    known = world.checkpoints[number]
    # A slot's checkpoint is written again only if it says the same or more of the table.
    if all(c.slot < slot for c in known):
        after = world._replace(
            checkpoints=put(world.checkpoints, number, known | {checkpoint}),
            written=put(world.written, number, world.written[number] + 1),
        )
        yield actor.to("checkpoint", me, after)


def roll_steps(actor: Actor) -> Steps:
    """Write a segment; commit it if the table stands where it begins, else rebase."""
    world, me = actor.world, actor.me
    leads = me.phase in ("owner", "giving") and world.used.rolls < actor.limits.rolls
    if leads and me.roll is None and me.table_next < me.image.next:
        used = world.used._replace(rolls=world.used.rolls + 1)
        segment = me._replace(roll=(me.table_next, me.image.next))
        yield actor.to("segment", segment, world._replace(used=used))
    if me.roll is not None:
        base, upto = me.roll
        if (
            len(world.table) == base
            or actor.variant == "table commit without the next-offset check"
        ):
            name, known = "table commit", upto
            after = world._replace(table=world.table + world.truth[base:upto])
        else:
            name, known, after = "table rebase", max(me.table_next, len(world.table)), world
        kept = tuple(extent for extent in me.image.extents if extent.offset >= known)
        image = Image(me.image.next, kept, known)
        yield actor.to(name, me._replace(roll=None, table_next=known, image=image), after)


def merge_steps(actor: Actor) -> Steps:
    """Copy what lies in slots into one merged object; write into the WAL that it lies there."""
    world, me, number, variant = actor.world, actor.me, actor.number, actor.variant
    leads = me.phase == "owner" or (me.phase == "giving" and variant == "merges while giving away")
    if not leads:
        return
    if me.merge is None and world.used.merges < actor.limits.merges:
        moving = [extent for extent in me.image.extents if not extent.merged]
        try:
            held = tuple((extent.offset, value_at(world, extent)) for extent in moving)
        except Missing:
            return  # The table has it by now, and that is looked at again.
        if held:
            objects = world.merged[number]
            moved = tuple(Extent(e.offset, number, len(objects), True) for e in moving)
            after = world._replace(
                merged=put(world.merged, number, (*objects, held)),
                used=world.used._replace(merges=world.used.merges + 1),
            )
            yield actor.to("merged object", me._replace(merge=moved), after)
    if me.merge is not None:
        image = me.image._replace(extents=relocated(me.image.extents, me.merge))
        told = me._replace(image=image, merge=None)
        if variant == "merge without an entry in the WAL":
            yield actor.to("relocate", told)
        elif actor.meets_seal:
            yield actor.to("relocation meets the seal", Local("dead"))
        else:
            after = actor.write(Entry(me.epoch, moved=me.merge))
            yield actor.to("relocate", told, after)


def give_steps(actor: Actor) -> Steps:
    """Stop accepting, write the image, append the move: valid only for the live owner."""
    world, me = actor.world, actor.me
    if world.used.changes == actor.limits.changes:
        return
    if me.phase == "owner":
        merge = me.merge if actor.variant == "merges while giving away" else None
        giving = me._replace(phase="giving", handover=me.image, merge=merge)
        yield actor.to("stop accepting", giving)
    if me.phase != "giving":
        return
    owner = world.tenures[-1]
    valid = (
        owner.broker == actor.number
        and owner.epoch == me.epoch
        and actor.number not in world.fenced
    ) or actor.variant == "move not validated"
    if not valid:
        yield actor.to("move refused", Local("dead"))
        return
    for receiver in range(BROKERS):
        if receiver != actor.number and receiver not in world.fenced:
            moved = Tenure(owner.epoch + 1, receiver, me.handover)
            after = world._replace(
                tenures=(*world.tenures, moved),
                used=world.used._replace(changes=world.used.changes + 1),
            )
            yield actor.to(f"move to {receiver}", Local(), after)


def open_steps(actor: Actor) -> Steps:
    """Take up the partition: look for the base, tenure by tenure, then replay."""
    world, me, number = actor.world, actor.me, actor.number
    owner = world.tenures[-1]
    if me.phase == "idle" and owner.broker == number and number not in world.fenced:
        # Of its own WAL it knows that it has opened nothing of this tenure.
        search = Search(world.tenures, world.retired, len(world.tenures) - 1, None)
        yield actor.to("begin to open", Local("opening", owner.epoch, search=search))
    if me.phase != "opening" or me.search is None:
        return
    search = me.search
    if not search.looked:
        broker = search.tenures[search.number].broker
        looked = search._replace(checkpoint=newest(world, broker), looked=True)
        yield actor.to("look for a checkpoint", me._replace(search=looked))
        return
    current = owner.epoch == me.epoch and number not in world.sealed
    try:
        outcome = look_into(world, search, actor.variant)
        if isinstance(outcome, Search):
            yield actor.to("look into the tenure before", me._replace(search=outcome))
            return
        image = replay(world, search, outcome, len(world.table), actor.variant)
    except Missing as missing:
        broker = search.tenures[search.number].broker
        if newest(world, broker) != search.checkpoint:
            yield actor.to("look again", me._replace(search=search._replace(looked=False)))
        elif current:
            raise Violation(f"an opener misses {missing}, and no newer base is there") from None
        else:
            yield actor.to("superseded", Local("dead"))
        return
    if current and image.next != len(world.truth):
        raise Violation(
            f"opener {number} rebuilds up to {image.next}, the log has {len(world.truth)}"
        )
    loaded = Local("loaded", me.epoch, image, table_next=len(world.table))
    yield actor.to("replay", loaded)


def fence_steps(actor: Actor) -> Steps:
    """Fence, seal, retire: an entry is valid only if its author is not fenced."""
    world, me, number = actor.world, actor.me, actor.number
    if me.phase not in ("idle", "owner"):
        return
    alive = number not in world.fenced or actor.variant == "fenced brokers act"
    owner = world.tenures[-1]
    for victim in range(BROKERS):
        if victim == number:
            continue
        if victim not in world.fenced and alive and owner.broker == victim:
            yield actor.to(f"fence {victim}", me, world._replace(fenced=world.fenced | {victim}))
        if victim in world.fenced and victim not in world.sealed:
            yield actor.to(f"seal {victim}", me, world._replace(sealed=world.sealed | {victim}))
        sealed = victim in world.sealed or actor.variant == "reassigns before the seal"
        may_retire = victim in world.fenced and sealed and victim not in world.retired and alive
        if may_retire and world.used.changes < actor.limits.changes:
            after = world._replace(
                retired=world.retired | {victim},
                used=world.used._replace(changes=world.used.changes + 1),
            )
            if owner.broker == victim:
                taken = Tenure(owner.epoch + 1, number, None)
                after = after._replace(tenures=(*world.tenures, taken))
            yield actor.to(f"retire {victim}", me, after)


# The collector, and a reader of the bucket.


def superfluous(world: World, variant: str) -> Iterator[tuple[int, int | Checkpoint | Merged]]:
    """What a collector may mark (F1), by what it reads: (broker, slot, checkpoint or merged)."""
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
            if in_table or unreferred or variant == "deletes what a base refers to":
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


def unsettled(world: World, broker: int, variant: str) -> set[int]:
    """A broker's merged objects of which no base has to tell yet: those that its WAL names from
    the floor on, and the one that is to be named, which it alone knows. All, if it is dead."""
    me = world.brokers[broker]
    # That variant goes wrong even if no merged object is ever deleted.
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
    """Mark; delete what was marked, at any later time."""
    for mark in superfluous(world, variant):
        if mark not in world.marked:
            yield f"mark {mark}", world._replace(marked=world.marked | {mark})
    for mark in world.marked:
        broker, what = mark
        after = world._replace(marked=world.marked - {mark})
        if isinstance(what, Merged):
            objects = put(world.merged[broker], what.number, None)
            yield f"delete {mark}", after._replace(merged=put(world.merged, broker, objects))
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


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        for number in range(BROKERS):
            if world.brokers[number].phase == "dead":
                continue
            actor = Actor(world, limits, variant, number)
            yield from append_steps(actor)
            yield from checkpoint_steps(actor)
            yield from roll_steps(actor)
            yield from merge_steps(actor)
            yield from give_steps(actor)
            yield from open_steps(actor)
            yield from fence_steps(actor)
        yield from collector_steps(world, variant)
        yield from reader_steps(world, limits, variant)

    return Model(beginning(), steps, lambda world: check(world, variant))


def catch(variant: str) -> Outcome:
    """Look for a broken variant's violation."""
    return model(VARIANTS[variant], variant).explore(1_000_000)


def main(arguments: list[str]) -> int:
    numbers = [int(argument) for argument in arguments if argument.isdigit()]
    if "--variants" in arguments:
        return catch_all(VARIANTS, catch)
    if "--walks" in arguments:
        outcome = model(WIDE).walk(numbers[0] if numbers else 5_000, length=150, seed=1)
    else:
        outcome = model(Limits()).explore(numbers[0] if numbers else 5_000_000)
    print(outcome)
    return int(outcome.violation is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
