"""A model of the metadata log: does it prove itself (rule C11)?

Three processes append entries, each by a put-if-absent that may land at any time or never; each
entry names the checksum of the one before. A process writes stamps into the bucket: number and
checksum of the last entry that it applied. One process writes snapshots, below which entries are
deleted. The bucket may lose one entry without any request. A process that starts reads the snapshot
and the entries, looks for entries above a hole, compares all stamps, and only then goes on.

In every state: without a loss no process takes the log for damaged. With a loss, no process goes on
from a view that contradicts a stamp from before its start, and no process applies an entry to
another state than the entry's author did.

    python -m tests.models.metadata_end              the protocol, all states
    python -m tests.models.metadata_end --walks      long random runs with wider limits
    python -m tests.models.metadata_end --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk


class Limits(NamedTuple):
    """The limits of the world."""

    processes: int = 2
    entries: int = 3
    starts: int = 2
    snapshots: int = 1
    losses: int = 1


WIDE = Limits(processes=3, entries=8, starts=6, snapshots=3)

VARIANTS = {
    "stamps are not compared": Limits(snapshots=0),
    "the checksum of a stamp is not compared": Limits(starts=3, snapshots=0),
    "a stamp above the view is damage": Limits(losses=0),
    "an entry above a hole is ignored": Limits(snapshots=0),
    "the predecessor is not compared": Limits(entries=4, snapshots=0),
    "stamps an entry that was only sent": Limits(losses=0, snapshots=0),
}
"""Broken variants, each with a small world in which it fails."""


class Entry(NamedTuple):
    """`identity` models the checksum, and `previous` that of the entry before."""

    identity: int
    previous: int


class Stamp(NamedTuple):
    """An entry that was applied."""

    number: int
    identity: int


NO_STAMP = Stamp(-1, -1)


class Process(NamedTuple):
    """phase: away, reading, gap, looking, comparing, live, damaged.

    `chain`: identities of the entries that it applied or that the snapshot stands for; `unseen`:
    the stamps that are to be compared; `least` and `above`: the ghost of the stamps and of the
    entries that were there when it began.
    """

    phase: str = "away"
    chain: tuple[int, ...] = ()
    trusted: int = -1
    """The number of the snapshot from which it started: below it nothing can be compared."""
    pending: Entry | None = None
    unseen: frozenset[Stamp] = frozenset()
    least: frozenset[Stamp] = frozenset()
    above: frozenset[int] = frozenset()


class World(NamedTuple):
    """The bucket and the processes' memories."""

    entries: tuple[Entry | None, ...]
    snapshot: tuple[int, ...]
    """The chain of the newest snapshot."""
    stamps: tuple[Stamp, ...]
    """The stamps of each process."""
    processes: tuple[Process, ...]
    written: int = 0
    """The identities that entries have used."""
    starts: int = 0
    snapshots: int = 0
    lost: int | None = None


Steps: TypeAlias = Iterator[tuple[str, World]]


def beginning(limits: Limits) -> World:
    """The log has entry 0, and process 0 lives."""
    first = Process("live", (0,), 0)
    return World(
        entries=(Entry(0, -1),),
        snapshot=(),
        stamps=(NO_STAMP,) * limits.processes,
        processes=(first, *(Process(),) * (limits.processes - 1)),
        written=1,
    )


def entry_at(world: World, number: int) -> Entry | None:
    return world.entries[number] if number < len(world.entries) else None


def head(process: Process) -> Stamp:
    return Stamp(len(process.chain) - 1, process.chain[-1])


def stored(world: World, number: int, entry: Entry | None) -> World:
    entries = (*world.entries, *(None,) * (number + 1 - len(world.entries)))
    return world._replace(entries=(*entries[:number], entry, *entries[number + 1 :]))


def replaced(world: World, number: int, process: Process) -> World:
    processes = (*world.processes[:number], process, *world.processes[number + 1 :])
    return world._replace(processes=processes)


def absorb(process: Process, entry: Entry, variant: str) -> Process:
    """Apply another process's entry. If the entry names another predecessor, the process ends."""
    if entry.previous != process.chain[-1] and variant != "the predecessor is not compared":
        return Process("damaged")
    if entry.previous != process.chain[-1]:
        raise Violation(f"entry {entry.identity} is applied to another state than its author's")
    return process._replace(chain=(*process.chain, entry.identity))


def live_steps(world: World, number: int, limits: Limits, variant: str) -> Steps:
    """Follow, append, stamp, write a snapshot, die."""
    me = world.processes[number]

    def to(name: str, process: Process, base: World = world) -> tuple[str, World]:
        return f"{number} {name}", replaced(base, number, process)

    at = len(me.chain)
    found = entry_at(world, at)
    if me.pending is None:
        if found is not None:
            yield to(f"reads {at}", absorb(me, found, variant))
        if world.written < limits.entries:
            pending = Entry(world.written, me.chain[-1])
            yield to("sends", me._replace(pending=pending), world._replace(written=pending[0] + 1))
        if world.snapshots < limits.snapshots and len(world.snapshot) < at:
            snapshot = world._replace(snapshot=me.chain, snapshots=world.snapshots + 1)
            yield to(f"snapshot {at - 1}", me, snapshot)
    elif found is None:
        landed = stored(world, at, me.pending)
        grown = me._replace(chain=(*me.chain, me.pending.identity), pending=None)
        yield to(f"puts {at}", grown, landed)
        yield to(f"puts {at} and dies", Process(), landed)
    else:
        after = absorb(me._replace(pending=None), found, variant)
        yield to(f"finds {at} taken", after)
    stamp = head(me)
    if variant == "stamps an entry that was only sent" and me.pending is not None:
        stamp = Stamp(at, me.pending.identity)
    if world.stamps[number] != stamp:
        stamps = (*world.stamps[:number], stamp, *world.stamps[number + 1 :])
        yield to(f"stamps {stamp}", me, world._replace(stamps=stamps))
    if world.starts < limits.starts:
        yield to("dies", Process())


def starting_steps(world: World, number: int, limits: Limits, variant: str) -> Steps:
    """Read the snapshot and the entries, look above the hole, compare the stamps, go on."""
    me = world.processes[number]

    def to(name: str, process: Process) -> tuple[str, World]:
        return f"{number} {name}", replaced(world, number, process)

    if me.phase == "away":
        if world.starts < limits.starts:
            chain = world.snapshot
            if not chain:
                first = world.entries[0]
                if first is None:
                    return
                chain = (first.identity,)
            least = frozenset(s for s in world.stamps if s != NO_STAMP)
            above = frozenset(n for n, entry in enumerate(world.entries) if entry is not None)
            begun = Process("reading", chain, len(chain) - 1, least=least, above=above)
            yield (
                f"{number} starts",
                replaced(world, number, begun)._replace(starts=world.starts + 1),
            )
        return
    at = len(me.chain)
    found = entry_at(world, at)
    if me.phase == "reading":
        if found is not None:
            yield to(f"reads {at}", absorb(me, found, variant))
        else:
            yield to("is at the end", me._replace(phase="gap"))
    elif me.phase == "gap":
        above = any(entry is not None for entry in world.entries[at + 1 :])
        if found is not None:
            yield to("goes on", me._replace(phase="reading"))
        elif above and variant != "an entry above a hole is ignored":
            yield to("sees an entry above a hole", Process("damaged"))
        else:
            yield to("sees no gap", me._replace(phase="looking"))
    elif me.phase == "looking":
        unseen = frozenset(s for s in world.stamps if s != NO_STAMP)
        if variant == "stamps are not compared":
            unseen = frozenset()
        yield to("looks for stamps", me._replace(phase="comparing", unseen=unseen))
    elif me.phase == "comparing":
        yield from comparing_steps(world, number, variant)


def comparing_steps(world: World, number: int, variant: str) -> Steps:
    """Compare one stamp after the other. For a stamp above the view the process first reads the log
    forward."""
    me = world.processes[number]

    def to(name: str, process: Process) -> tuple[str, World]:
        return f"{number} {name}", replaced(world, number, process)

    stamp = min(me.unseen, default=None)
    at = len(me.chain)
    found = entry_at(world, at)
    if stamp is None:
        judge_start(world, me)
        none: frozenset[int] = frozenset()
        yield to("goes live", me._replace(phase="live", least=frozenset(), above=none))
        return
    if stamp.number >= at:
        if found is not None and variant != "a stamp above the view is damage":
            yield to(f"reads {at}", absorb(me, found, variant))
        else:
            yield to(f"misses {at}", Process("damaged"))
        return
    compared = stamp.number >= me.trusted and variant != "the checksum of a stamp is not compared"
    if compared and me.chain[stamp.number] != stamp.identity:
        yield to(f"meets another {stamp}", Process("damaged"))
    else:
        yield to(f"agrees with {stamp}", me._replace(unseen=me.unseen - {stamp}))


def judge_start(world: World, me: Process) -> None:
    """Check that a process that goes on agrees with all earlier stamps."""
    at = len(me.chain)
    if entry_at(world, at) is None and any(
        number > at and entry_at(world, number) is not None for number in me.above
    ):
        raise Violation(f"a process goes on at {at - 1}, below entries that were there")
    for stamp in me.least:
        if stamp.number >= at:
            raise Violation(f"a process goes on at {at - 1} although {stamp} was there")
        if stamp.number >= me.trusted and me.chain[stamp.number] != stamp.identity:
            raise Violation(f"a process goes on from another log than {stamp}")


def loss_steps(world: World, limits: Limits) -> Steps:
    """Entries below the snapshot are deleted after the grace, when processes with older views have
    ended (rule A2). One entry is lost."""
    horizon = len(world.snapshot) - 1
    for number, entry in enumerate(world.entries):
        if entry is None:
            continue
        if 0 < number < horizon:
            without = stored(world, number, None)
            for index, process in enumerate(world.processes):
                if process.chain and len(process.chain) - 1 < number:
                    without = replaced(without, index, Process())
            yield f"collect {number}", without
        elif limits.losses and world.lost is None and number > 0 and number > horizon:
            yield f"LOSE {number}", stored(world, number, None)._replace(lost=number)


def check(world: World) -> None:
    """Check the rules that hold in every state."""
    for number, process in enumerate(world.processes):
        if process.phase == "damaged" and world.lost is None:
            raise Violation(f"process {number} takes a sound log for damaged")


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        for number, process in enumerate(world.processes):
            if process.phase == "live":
                yield from live_steps(world, number, limits, variant)
            elif process.phase != "damaged":
                yield from starting_steps(world, number, limits, variant)
        yield from loss_steps(world, limits)

    return Model(beginning(limits), steps, check)


def catch(variant: str) -> Outcome:
    """Look for a broken variant's violation."""
    return model(VARIANTS[variant], variant).explore(3_000_000)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, catch)
    return explore_or_walk(arguments, model(Limits()), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
