"""A model of a WAL's end: does it prove itself (rule C10)?

A writer has several PUTs in flight, and each may land at any time, even after the writer has ended.
The writer puts a *stamp*, the number of slots that it has confirmed, into each slot and into its
lease. It also writes checkpoints. A collector deletes below the newest checkpoint. One stored slot
may be lost without any request. Two sealers find the end, seal it and retire the WAL; a newcomer
overwrites the lease behind the fence. A reader of the bucket finds the end while the writer lives
(rule G2).

In every state: without a loss no process reports damage, ends the WAL below an acknowledged slot,
or has a missing slot below the end. With a loss, a slot below a stamp is reported as damaged, and
no other slot is.

    python -m tests.models.wal_end              the protocol, all states
    python -m tests.models.wal_end --walks      long random runs with wider limits
    python -m tests.models.wal_end --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk

SEAL = "S"
Content: TypeAlias = "int | str | None"
"""The content of a slot: the stamp of a data object, SEAL, or None for no object."""


class Limits(NamedTuple):
    """The limits of the world."""

    slots: int = 3
    window: int = 2
    losses: int = 1
    sealers: int = 1
    reads: int = 0


WIDE = Limits(slots=7, window=3, sealers=2, reads=1)

VARIANTS = {
    "takes a hole for damage without looking again": Limits(losses=0),
    "does not look at the floor again": Limits(losses=0),
    "does not look again before it retires": Limits(losses=0, sealers=2),
    "seals the first hole": Limits(),
    "takes the first seal for the end": Limits(sealers=2),
    "stamps slots that were only sent": Limits(losses=0),
    "fence without a stamp": Limits(),
    "reader takes a hole for the end": Limits(sealers=0, reads=1),
    "reader tells damage at once": Limits(losses=0, sealers=0, reads=1),
}
"""Broken variants, each with a small world in which it fails."""


class Walk(NamedTuple):
    """A walk forward through the slots. `stamp` and `floor` are as of the last look.

    step: floor, read, stamp, again, seal, final, done.
    """

    step: str = "floor"
    at: int = 0
    stamp: int = 0
    floor: int = 0
    damaged: frozenset[int] = frozenset()
    end: int = -1


class Retired(NamedTuple):
    """The end in the metadata log, and a ghost: the knowledge that was possible at that time.

    A slot below the end that is missing needs no further proof: replay misses it (rule C6).
    """

    end: int
    damaged: frozenset[int]
    promised: int


class Reader(NamedTuple):
    """A reader's walk, and a ghost variable with the true state at its beginning."""

    walk: Walk
    acknowledged: int
    promised: int
    lost: int | None


class World(NamedTuple):
    """The bucket, the network, and the memory of each process."""

    slots: tuple[Content, ...]
    flying: tuple[tuple[int, int], ...] = ()
    """PUTs that have not landed: (slot, stamp)."""
    confirmed: frozenset[int] = frozenset()
    sent: int = 0
    ended: bool = False
    """The writer is dead, or knows that it is fenced."""
    lease: int = 0
    """The stamp in the lease object; -1 when a newcomer has overwritten it."""
    floor: int = 0
    lost: int | None = None
    fence: int | None = None
    """The stamp that the metadata log names with the fence."""
    sealers: tuple[Walk, ...] = ()
    retired: Retired | None = None
    reader: Reader | None = None
    reads: int = 0


Steps: TypeAlias = Iterator[tuple[str, World]]


def beginning(limits: Limits) -> World:
    """The first state."""
    return World((None,) * limits.slots, sealers=(Walk(),) * limits.sealers)


def acknowledged(world: World) -> int:
    end = 0
    while end in world.confirmed:
        end += 1
    return end


def stamp_of(world: World, variant: str) -> int:
    """The highest stamp that can be found now: in data slots, the lease, the fence."""
    data = [content for content in world.slots if isinstance(content, int)]
    fence = 0 if world.fence is None or variant == "fence without a stamp" else world.fence
    return max([world.lease, fence, *data])


def promised(world: World) -> int:
    """The ghost: the stamp that an observer must be able to see. A lease that a fenced writer still
    renews may be overwritten before that."""
    lease = world.lease if world.fence is None else world.fence
    return max(stamp_of(world._replace(lease=lease), ""), world.floor)


def changed(slots: tuple[Content, ...], slot: int, content: Content) -> tuple[Content, ...]:
    return (*slots[:slot], content, *slots[slot + 1 :])


def writer_steps(world: World, limits: Limits, variant: str) -> Steps:
    """Send, confirm or end, renew the lease, write a checkpoint."""
    done = acknowledged(world)
    if not world.ended and world.sent < limits.slots and world.sent < done + limits.window:
        stamp = world.sent if variant == "stamps slots that were only sent" else done
        flying = tuple(sorted((*world.flying, (world.sent, stamp))))
        yield f"put {world.sent}", world._replace(flying=flying, sent=world.sent + 1)
    for put in world.flying:
        slot, stamp = put
        rest = world._replace(flying=tuple(each for each in world.flying if each != put))
        if world.slots[slot] is not None:
            yield f"put {slot} meets a seal", rest._replace(ended=True)
            continue
        landed = rest._replace(slots=changed(world.slots, slot, stamp))
        known = landed if world.ended else landed._replace(confirmed=world.confirmed | {slot})
        yield f"put {slot} lands", known
        yield f"put {slot} lands, the answer is lost", landed._replace(ended=True)
    if world.ended:
        return
    yield "writer dies", world._replace(ended=True)
    if 0 <= world.lease < done:
        yield "renew the lease", world._replace(lease=done)
    if world.floor < done and world.retired is None:
        yield f"checkpoint {done}", world._replace(floor=done)


def loss_steps(world: World, limits: Limits) -> Steps:
    """The collector deletes below the floor; one slot above it is lost."""
    for slot, content in enumerate(world.slots):
        if not isinstance(content, int):
            continue
        without = changed(world.slots, slot, None)
        if slot < world.floor:
            yield f"collect {slot}", world._replace(slots=without)
        elif limits.losses and world.lost is None:
            yield f"LOSE {slot}", world._replace(slots=without, lost=slot)


def fence_steps(world: World) -> Steps:
    """The fence names the lease's stamp; from then on a newcomer may overwrite the lease."""
    if world.fence is None:
        yield "fence", world._replace(fence=world.lease)
    elif world.lease >= 0:
        yield "a newcomer overwrites the lease", world._replace(lease=-1)


def walk_on(world: World, walk: Walk, variant: str, prefix: str) -> tuple[str, Walk] | None:
    """The next look, up to the first hole or to a seal that is no damage. None after that."""
    at = walk.at
    content = world.slots[at] if at < len(world.slots) else None
    if walk.step == "floor":
        return "look at the floor", walk._replace(step="read", at=world.floor, floor=world.floor)
    if walk.step == "read":
        if at < walk.floor or isinstance(content, int):
            return f"pass {at}", walk._replace(at=at + 1)
        if at >= len(world.slots):
            return None
        return f"stop at {at}", walk._replace(step="stamp")
    if walk.step == "stamp":
        if variant == "reader tells damage at once" and prefix == "reader" and content is None:
            return "tells", walk._replace(step="read", at=at + 1, damaged=walk.damaged | {at})
        return "look for stamps", walk._replace(step="again", stamp=stamp_of(world, variant))
    if walk.step == "again":
        floor = walk.floor if variant == "does not look at the floor again" else world.floor
        again = variant != "takes a hole for damage without looking again"
        if again and (isinstance(content, int) or at < floor):
            after = at + 1 if isinstance(content, int) else floor
            return "it is no hole", walk._replace(step="read", at=after, floor=floor)
        if floor <= at < walk.stamp:
            return f"{at} is damaged", walk._replace(
                step="read", at=at + 1, floor=floor, damaged=walk.damaged | {at}
            )
        return f"{at} is the end", walk._replace(step="seal", floor=floor)
    return None


def sealer_steps(world: World, number: int, variant: str) -> Steps:
    """Walk, seal, look again, retire."""
    walk = world.sealers[number]
    if walk.step == "done" or world.fence is None:
        return

    def to(name: str, after: Walk, base: World = world) -> tuple[str, World]:
        sealers = (*base.sealers[:number], after, *base.sealers[number + 1 :])
        return f"sealer {number}: {name}", base._replace(sealers=sealers)

    at, beyond = walk.at, walk.at >= len(world.slots)
    content = None if beyond else world.slots[at]
    if walk.step == "final":
        low = walk.end < max(stamp_of(world, variant), world.floor)
        careless = (
            "does not look again before it retires",
            "seals the first hole",
            "takes the first seal for the end",
        )
        if low and variant not in careless:
            yield to("the end is none", walk._replace(step="stamp", end=-1))
            return
        retired = world.retired or Retired(walk.end, walk.damaged, promised(world))
        yield to("retire", walk._replace(step="done"), world._replace(retired=retired))
        return
    if walk.step == "read" and not isinstance(content, int) and at >= walk.floor and not beyond:
        if variant == "takes the first seal for the end" and content == SEAL:
            yield to(f"meet the seal at {at}", walk._replace(step="final", end=at))
            return
        if variant == "seals the first hole":
            yield to(f"stop at {at}", walk._replace(step="seal"))
            return
    following = walk_on(world, walk, variant, "sealer")
    if following is not None:
        yield to(*following)
    elif isinstance(content, int):
        yield to(f"{at} is data", walk._replace(step="read"))
    elif content == SEAL or beyond:
        yield to(f"end at {at}", walk._replace(step="final", end=at))
    else:
        sealed = world._replace(slots=changed(world.slots, at, SEAL))
        yield to(f"seal {at}", walk._replace(step="final", end=at), sealed)


def reader_steps(world: World, limits: Limits, variant: str) -> Steps:
    """Find the end of a WAL that is not retired."""
    reader = world.reader
    if reader is None:
        if world.reads < limits.reads and world.retired is None:
            ghost = Reader(Walk(), acknowledged(world), promised(world), world.lost)
            yield "reader: begin", world._replace(reader=ghost, reads=world.reads + 1)
        return
    walk = reader.walk
    careless = variant == "reader takes a hole for the end" and walk.step == "stamp"
    following = None if careless else walk_on(world, walk, variant, "reader")
    if following is not None:
        name, after = following
        yield f"reader: {name}", world._replace(reader=reader._replace(walk=after))
        return
    if world.retired is None:
        judge_reader(world, reader)
    yield "reader: done", world._replace(reader=None)


def judge_reader(world: World, reader: Reader) -> None:
    """Judge a reader's finding by the truth when it began."""
    end, damaged = reader.walk.at, reader.walk.damaged
    if any(slot != world.lost for slot in damaged):
        raise Violation(f"a reader tells damage of sound slots: {sorted(damaged)}")
    lost_before = reader.lost is not None and reader.lost >= world.floor
    if end < reader.acknowledged and world.lost is None:
        raise Violation(f"a reader ends at {end}, acknowledged was {reader.acknowledged}")
    if lost_before and reader.lost < reader.promised and reader.lost not in damaged:
        raise Violation(f"a reader does not notice that slot {reader.lost} is lost")


def check(world: World) -> None:
    """Check the rules that hold in every state."""
    if world.retired is None:
        return
    end, damaged, told = world.retired
    done = acknowledged(world)
    if world.lost is None:
        if damaged:
            raise Violation(f"damage is told where there is none: {sorted(damaged)}")
        if end < done:
            raise Violation(f"acknowledged up to {done}, ends at {end}")
        if any(world.slots[slot] is None for slot in range(world.floor, end)):
            raise Violation("a slot below the end is missing")
        return
    if end < told:
        raise Violation(f"it ends at {end} although {told} slots were told to be durable")
    if any(slot != world.lost for slot in damaged):
        raise Violation(f"damage is told of sound slots: {sorted(damaged)}, lost {world.lost}")


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        yield from writer_steps(world, limits, variant)
        yield from loss_steps(world, limits)
        if limits.sealers:
            yield from fence_steps(world)
        for number in range(limits.sealers):
            yield from sealer_steps(world, number, variant)
        yield from reader_steps(world, limits, variant)

    return Model(beginning(limits), steps, check)


def catch(variant: str) -> Outcome:
    """Look for a broken variant's violation."""
    return model(VARIANTS[variant], variant).explore(3_000_000)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, catch)
    return explore_or_walk(arguments, model(Limits(slots=4)), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
