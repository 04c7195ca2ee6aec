"""A model of `tidelog bucket copy`: is the copy of a bucket in use a state that the bucket had?

Three brokers share the bucket. *A* coordinates transactions: it adds a partition, prepares and
completes. *B* owns the partition: its WAL gets each transaction's data and marker. The partition
moves to *C* once, which opens it with an image. Rolls, checkpoints, state snapshots and a collector
without any grace may come between any two steps of the copier.

Objects that a copy must not mix, by their references:

| Object | needs |
|---|---|
| slot of a WAL, lease | the metadata log up to its stamp (C11), slots up to its durable end (C10) |
| entry of the metadata log | slots of WALs below the end that it names (C3, C4) |
| data, marker, Complete in a WAL | its cause in another WAL: addition, Prepare, marker (H2, H3) |
| base: checkpoint, opening image | its table or a newer one (G1), the slots that its extents name |
| table, state snapshot | the slots and decisions that it holds the outcome of |

The copier reads in this order: the bases; the tables and state snapshots; an *instant*, at which
the metadata log and all WALs end. It learns the ends one after the other, and then looks at each
again: if none has grown, all of them ended there at the moment between. So the copy's logs are
those of a bucket whose brokers were all killed at that instant. Its bases and tables are older, and
in the order that readers rely on. Then the copier copies the objects that these need. If an object
is gone, a newer base replaced it, and the copier begins again from the bases.

    python -m tests.models.bucket_copy              the protocol, all states
    python -m tests.models.bucket_copy --walks      long random runs with wider limits
    python -m tests.models.bucket_copy --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk

A, B, C = range(3)
LOG = 3
"""The metadata log's place among the WALs whose ends a copier looks at."""
SEQUENCES = (A, B, C, LOG)


class Limits(NamedTuple):
    """The limits of the world."""

    transactions: int = 1
    checkpoints: int = 1
    entries: int = 0
    """Entries of the metadata log besides moves."""
    moves: int = 1
    rounds: int = 2
    snapshots: int = 0
    prelude: tuple[str, ...] = ()
    """Steps of brokers that the exploration tries first."""


WIDE = Limits(transactions=4, checkpoints=6, entries=3, rounds=4, snapshots=3)
STILL = Limits(checkpoints=0, moves=0, rounds=1)
SETTLED = Limits(moves=0, rounds=1)
MOVED = Limits(rounds=1, prelude=("A add 0", "B data 0", "move", "C open 0"))
"""The copy begins between a move and the checkpoint that has the partition's opening."""
VARIANTS = {
    "the ends are not looked at again": STILL,
    "the log's end is not looked at again": STILL._replace(entries=1),
    "the log is read again after the ends": STILL._replace(moves=1),
    "tables are read before bases": SETTLED,
    "tables are read after the instant": STILL,
    "state snapshots are read after the instant": STILL._replace(snapshots=1),
    "bases are read after the instant": SETTLED,
    "leases are copied": STILL,
    "missing objects are left out": SETTLED,
    "WALs of former owners are left out": MOVED,
}
"""Broken orders, each with a small world in which it fails."""


class Put(NamedTuple):
    """A slot: add, prepare or complete of A; data, marker or open of B and C."""

    kind: str
    transaction: int
    stamp: int
    """The number of metadata entries that its writer had applied."""


Slot: TypeAlias = tuple[int, int]
"""A WAL, and the number of a slot."""


class Base(NamedTuple):
    """The newest checkpoint of a WAL. For A, `table_next` is an offset of its state."""

    slot: int = 0
    table_next: int = 0
    extents: tuple[tuple[int, Slot], ...] = ()
    """Transactions whose data is not in the table, and the slots of the data."""
    has_partition: bool = False


class Entry(NamedTuple):
    """other, moved (B's slots below `end` are durable), or opened."""

    kind: str
    end: int = 0


class Copier(NamedTuple):
    """The objects that the copier has read, and those that it has copied. phase: idle, tables,
    ends, copying, done."""

    phase: str = "idle"
    rounds: int = 0
    least: tuple[int, ...] = (0, 0, 0, 0)
    """Ghost: the ends when the copy began."""
    first_log: int = 0
    bases: tuple[Base, ...] = (Base(), Base(), Base())
    table: int = 0
    snapshot: int = 0
    ends: tuple[int, ...] = (0, 0, 0, 0)
    read: frozenset[int] = frozenset()
    unmoved: frozenset[int] = frozenset()
    copied: frozenset[Slot] = frozenset()
    done: frozenset[int] = frozenset()
    lease: int = 0


class World(NamedTuple):
    """The bucket and the copier."""

    wals: tuple[tuple[Put, ...], ...] = ((), (), ())
    log: tuple[Entry, ...] = (Entry("other"),)
    gone: frozenset[Slot] = frozenset()
    bases: tuple[Base, ...] = (Base(), Base(has_partition=True), Base())
    table: int = 0
    snapshot: int = 0
    checkpoints: int = 0
    snapshots: int = 0
    copier: Copier = Copier()


Steps: TypeAlias = Iterator[tuple[str, World]]


def ends_of(world: World) -> tuple[int, ...]:
    return (*(len(wal) for wal in world.wals), len(world.log))


def has(log: tuple[Entry, ...], kind: str) -> bool:
    return any(entry.kind == kind for entry in log)


def find(wals: tuple[tuple[Put, ...], ...], kind: str, transaction: int) -> Slot | None:
    """The slot with this entry of a transaction."""
    for owner, wal in enumerate(wals):
        for number, put in enumerate(wal):
            if (put.kind, put.transaction) == (kind, transaction):
                return owner, number
    return None


def put(world: World, owner: int, kind: str, transaction: int) -> tuple[str, World]:
    slot = Put(kind, transaction, len(world.log))
    wals = tuple((*wal, slot) if each == owner else wal for each, wal in enumerate(world.wals))
    return f"{'ABC'[owner]} {kind} {transaction}", world._replace(wals=wals)


def extents(world: World) -> tuple[tuple[int, Slot], ...]:
    """The places of the data that is not in the table."""
    found = []
    transaction = world.table
    while (slot := find(world.wals, "data", transaction)) is not None:
        found.append((transaction, slot))
        transaction += 1
    return tuple(found)


def broker_steps(world: World, limits: Limits) -> Steps:
    """The transaction protocol, a move, rolls, checkpoints, snapshots and the collector."""
    moved, opened = has(world.log, "moved"), has(world.log, "opened")
    owner = C if moved else B
    serves = not moved or find(world.wals, "open", 0) is not None
    if moved and not serves:
        yield put(world, C, "open", 0)
    n = sum(each.kind == "complete" for each in world.wals[A])
    if n < limits.transactions:
        if find(world.wals, "add", n) is None:
            yield put(world, A, "add", n)
        elif find(world.wals, "data", n) is None:
            if serves:
                yield put(world, owner, "data", n)
        elif find(world.wals, "prepare", n) is None:
            yield put(world, A, "prepare", n)
        elif find(world.wals, "marker", n) is None:
            if serves:
                yield put(world, owner, "marker", n)
        else:
            yield put(world, A, "complete", n)
    if find(world.wals, "marker", world.table) is not None:
        yield "roll", world._replace(table=world.table + 1)
    if world.snapshots < limits.snapshots and world.snapshot < len(world.wals[A]):
        following = world._replace(snapshot=len(world.wals[A]), snapshots=world.snapshots + 1)
        yield "state snapshot", following
    if len(world.log) <= limits.entries + moved + opened:
        yield "entry", world._replace(log=(*world.log, Entry("other")))
    if not moved and limits.moves:
        yield "move", world._replace(log=(*world.log, Entry("moved", len(world.wals[B]))))
    elif moved and not opened and world.bases[C].has_partition:
        yield "opened", world._replace(log=(*world.log, Entry("opened")))
    if world.checkpoints < limits.checkpoints:
        yield from checkpoint_steps(world, limits, owner if serves else None)
    gone = superfluous(world)
    if gone - world.gone:
        yield "collect", world._replace(gone=world.gone | gone)


def checkpoint_steps(world: World, limits: Limits, owner: int | None) -> Steps:
    """The offset of A's state if it has snapshots, and of the image at the partition's owner."""
    for each in (A, owner):
        if each is None or (each == A and not limits.snapshots):
            continue
        slot = len(world.wals[each])
        base = (
            Base(slot, world.snapshot)
            if each == A
            else Base(slot, world.table, extents(world), True)
        )
        if base != world.bases[each]:
            bases = tuple(base if i == each else b for i, b in enumerate(world.bases))
            yield (
                f"checkpoint {'ABC'[each]}",
                world._replace(bases=bases, checkpoints=world.checkpoints + 1),
            )


def superfluous(world: World) -> frozenset[Slot]:
    """The slots that the collector may delete (F1)."""
    opened = has(world.log, "opened")
    needed = (C,) if opened else (B, C)
    kept = {slot for owner in needed for _, slot in world.bases[owner].extents}
    # The state of A is rebuilt from its newest snapshot, so slots below it are not read.
    floors = {
        A: min(world.bases[A].slot, world.bases[A].table_next),
        B: len(world.wals[B]) if opened else world.bases[B].slot,
        C: world.bases[C].slot,
    }
    return frozenset(
        (owner, number)
        for owner, floor in floors.items()
        for number in range(floor)
        if (owner, number) not in kept
    )


def copier_steps(world: World, limits: Limits, variant: str) -> Steps:
    me = world.copier

    def to(name: str, copier: Copier) -> tuple[str, World]:
        return f"copier {name}", world._replace(copier=copier)

    if me.phase in ("idle", "again"):
        if me.rounds < limits.rounds:
            least = ends_of(world) if me.phase == "idle" else me.least
            begun = Copier("tables", me.rounds + 1, least, len(world.log), world.bases)
            if variant == "tables are read before bases":
                begun = begun._replace(table=world.table, snapshot=world.snapshot, phase="late")
            yield to("reads the bases", begun)
    elif me.phase == "late":
        yield to("reads the bases now", me._replace(bases=world.bases, phase="ends"))
    elif me.phase == "tables":
        table = me._replace(table=world.table, snapshot=world.snapshot, phase="ends")
        yield to("reads the tables", table)
    elif me.phase == "ends":
        yield from ends_steps(world, variant)
    elif me.phase == "copying":
        yield from copying_steps(world, variant)


def ends_steps(world: World, variant: str) -> Steps:
    """Learn each end, then look at each again. If an end has grown, all looks are void."""
    me, now = world.copier, ends_of(world)
    for each in SEQUENCES:
        name = "log" if each == LOG else "ABC"[each]
        grown = tuple(now[i] if i == each else end for i, end in enumerate(me.ends))
        if each not in me.read:
            if each != len(me.read):
                continue
            read = me._replace(ends=grown, read=me.read | {each})
            yield f"copier reads the end of {name}", world._replace(copier=read)
        elif len(me.read) == len(SEQUENCES) and each not in me.unmoved:
            unmoved = me.unmoved | {each}
            unlooked = variant == "the ends are not looked at again" or (
                each == LOG and variant.startswith("the log's end")
            )
            if grown != me.ends and not unlooked:
                looked = me._replace(ends=grown, unmoved=frozenset())
            else:
                looked = me._replace(unmoved=unmoved)
            yield f"copier looks at the end of {name}", world._replace(copier=looked)
    if len(me.unmoved) == len(SEQUENCES):
        yield "copier has the instant", world._replace(copier=late_reads(world, variant))


def late_reads(world: World, variant: str) -> Copier:
    """The copier at its instant. Broken variants read the rest one step later."""
    late = (
        "the log is read again after the ends",
        "tables are read after the instant",
        "state snapshots are read after the instant",
        "bases are read after the instant",
        "leases are copied",
    )
    return world.copier._replace(phase="copying", done=frozenset({-1} if variant in late else ()))


def copying_steps(world: World, variant: str) -> Steps:
    """Copy one WAL after the other. A missing slot begins the round again."""
    me = world.copier
    if -1 in me.done:
        ends, bases, table, snapshot, lease = me.ends, me.bases, me.table, me.snapshot, 0
        if variant.startswith("the log is read"):
            ends = (*me.ends[:LOG], len(world.log))
        elif variant.startswith("tables"):
            table = world.table
        elif variant.startswith("state snapshots"):
            snapshot = world.snapshot
        elif variant.startswith("bases"):
            bases = world.bases
        else:
            lease = len(world.wals[B])
        late = me._replace(
            ends=ends, bases=bases, table=table, snapshot=snapshot, lease=lease, done=frozenset()
        )
        yield "copier reads late", world._replace(copier=late)
        return
    for owner in (A, B, C):
        if owner in me.done:
            continue
        needed = needed_slots(world, owner, variant)
        missing = needed & world.gone
        copied = me._replace(copied=me.copied | (needed - missing), done=me.done | {owner})
        if missing and variant != "missing objects are left out":
            copied = Copier("again", me.rounds, me.least)
        yield f"copier copies {'ABC'[owner]}", world._replace(copier=copied)
    if len(me.done) == len(world.wals):
        yield "copier publishes", world._replace(copier=me._replace(phase="done"))


def needed_slots(world: World, owner: int, variant: str) -> frozenset[Slot]:
    """The slots of a WAL that the copy needs, according to the objects that the copier has read."""
    me = world.copier
    opened = has(world.log[: me.ends[LOG]], "opened")
    was_opened = has(world.log[: me.first_log], "opened")
    if variant == "WALs of former owners are left out":
        was_opened = opened
    owners = (A, C) if opened and was_opened else (A, B, C)
    found = {slot for each in owners for _, slot in me.bases[each].extents if slot[0] == owner}
    if owner in owners:
        # The state of A comes from the snapshot, so its slots below that are not needed.
        floor = me.bases[owner].slot
        if owner == A:
            floor = min(floor, me.bases[A].table_next)
        found |= {(owner, number) for number in range(floor, me.ends[owner])}
    return frozenset(found)


def check(world: World) -> None:
    if world.copier.phase == "done":
        judge(world)


def judge(world: World) -> None:
    """Open the copy as a broker would."""
    me = world.copier
    log = world.log[: me.ends[LOG]]
    wals = tuple(wal[:end] for wal, end in zip(world.wals, me.ends[:LOG], strict=True))
    if any(end < least for end, least in zip(me.ends, me.least, strict=True)):
        raise Violation("the copy lacks entries that were durable before it began")
    for owner, number in me.copied:
        if number < me.ends[owner] and wals[owner][number].stamp > len(log):
            raise Violation("the copy's log ends below the stamp of a slot")
    for entry in log:
        if entry.kind == "moved" and entry.end > len(wals[B]):
            raise Violation("the copy's log names slots that the copy lacks")
    if me.lease > me.ends[B]:
        raise Violation("the lease tells of durable slots that the copy lacks")
    judge_state(me, wals)
    judge_partition(me, log, wals)
    judge_transactions(me, wals)


def judge_state(me: Copier, wals: tuple[tuple[Put, ...], ...]) -> None:
    if me.snapshot > len(wals[A]):
        raise Violation("a state snapshot is ahead of its log")
    floor = min(me.bases[A].slot, me.bases[A].table_next)
    if me.snapshot < me.bases[A].table_next or any(
        (A, number) not in me.copied for number in range(max(floor, me.snapshot), len(wals[A]))
    ):
        raise Violation("the coordinator's state cannot be rebuilt")


def judge_partition(me: Copier, log: tuple[Entry, ...], wals: tuple[tuple[Put, ...], ...]) -> None:
    """Choose the base (C5), replay (C6), and read every record."""
    opening = find(wals, "open", 0)
    owner, base = B, me.bases[B]
    replayed = [(B, number) for number in range(base.slot, len(wals[B]))]
    if me.bases[C].has_partition:
        owner, base = C, me.bases[C]
        replayed = [(C, number) for number in range(base.slot, len(wals[C]))]
    elif opening is not None and has(log, "opened"):
        # The base is the opening image; its extents are those of B's log and lie in B's slots.
        replayed = [(C, number) for number in range(opening[1], len(wals[C]))]
        base = Base(opening[1], me.bases[B].table_next, ())
    elif opening is not None:
        replayed += [(C, number) for number in range(len(wals[C]))]
    if base.slot > len(wals[owner]):
        raise Violation("a base lies above the end of its WAL")
    if base.table_next > me.table:
        raise Violation("a base knows of a later end of the table")
    if not set(replayed) <= me.copied:
        raise Violation("a slot that is replayed is missing")
    transaction = me.table
    while (slot := find(wals, "data", transaction)) is not None:
        if slot not in me.copied:
            raise Violation("a record is neither in the table nor in a slot")
        transaction += 1


def judge_transactions(me: Copier, wals: tuple[tuple[Put, ...], ...]) -> None:
    """Each effect has its cause, even in another WAL."""
    for transaction in range(me.table):
        if find(wals, "marker", transaction) is None:
            raise Violation("the table is ahead of the log")
    for effect, cause in (("data", "add"), ("marker", "prepare"), ("complete", "marker")):
        transaction = 0
        while find(wals, effect, transaction) is not None:
            if find(wals, cause, transaction) is None:
                raise Violation(f"the copy has a {effect} without its {cause}")
            transaction += 1


def model(limits: Limits, variant: str = "") -> Model[World]:
    def steps(world: World) -> Steps:
        if world.copier.phase != "done":
            yield from broker_steps(world, limits)
            yield from copier_steps(world, limits, variant)

    world = World()
    for name in limits.prelude:
        world = dict(broker_steps(world, limits))[name]
    return Model(world, steps, check)


def caught(variant: str) -> Outcome:
    return model(VARIANTS[variant], variant).explore(1_000_000)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, caught)
    return explore_or_walk(arguments, model(Limits()), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
