"""A model of a WAL's fencing: a writer, two that seal its WAL, a collector, and a network.

The writer puts slots, a window of them at a time, and writes checkpoints. Its requests are delayed,
lost and doubled, and its answers lost. It may stall between any two steps, and never learn that it
has been replaced. Two recoverers put barriers, scan forward from a checkpoint that they read some
time ago and seal the first hole. At any time later, a collector deletes slots that a checkpoint has
made superfluous, and slots of a retired WAL.

In every state: no recoverer finds an end below an acknowledged slot or below a checkpoint, and all
recoverers find the same end.

    python -m tests.models.fencing              the protocol, all states
    python -m tests.models.fencing --walks      long random runs with wider limits
    python -m tests.models.fencing --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk

EMPTY, DATA, SEAL = ".", "D", "S"
UNSENT, SENT, CONFIRMED = "unsent", "sent", "confirmed"

VARIANTS = (
    "acknowledges out of order",
    "takes 412 for success",
    "does not seal",
    "seals behind the last object",
    "collector deletes the seal",
    "late recoverer ignores the retirement",
    "does not look at the checkpoint again",
)


class Limits(NamedTuple):
    """The limits of the world."""

    slots: int = 3
    window: int = 2
    repeats: int = 1
    """The number of puts that the writer sends again."""
    checkpoints: int = 1


WIDE = Limits(slots=6, window=3, repeats=4, checkpoints=3)


class Writer(NamedTuple):
    """The old owner. It acknowledges the slots below `acknowledged`."""

    slots: tuple[str, ...]
    acknowledged: int = 0
    ended: bool = False
    repeats: int = 0
    checkpoints: int = 0


class Recoverer(NamedTuple):
    """A process that seals. `start`: the checkpoint that it read. `found`: the end, to be
    confirmed."""

    start: int | None = None
    cursor: int = 0
    found: int | None = None
    end: int | None = None


class World(NamedTuple):
    """The bucket, the network, and the memory of each process."""

    slots: tuple[str, ...]
    floor: int
    """The newest checkpoint's slot."""
    requests: tuple[int, ...]
    """Puts of the writer that have not been acted on."""
    answers: tuple[tuple[int, bool], ...]
    """(slot, whether the put was applied), on their way to the writer."""
    writer: Writer
    recoverers: tuple[Recoverer, ...]
    retired: int | None
    """The end in the metadata log."""


Steps: TypeAlias = Iterator[tuple[str, World]]


def beginning(limits: Limits) -> World:
    """The first state."""
    writer = Writer((UNSENT,) * limits.slots)
    return World((EMPTY,) * limits.slots, 0, (), (), writer, (Recoverer(),) * 2, None)


def changed(values: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*values[:index], value, *values[index + 1 :])


def check(world: World) -> None:
    """Check the rules that hold in every state."""
    ends = [recoverer.end for recoverer in world.recoverers if recoverer.end is not None]
    for end in ends:
        if end < world.writer.acknowledged:
            raise Violation(f"the end is {end}, acknowledged was {world.writer.acknowledged}")
        if end < world.floor:
            raise Violation(f"the end is {end}, a checkpoint lies at {world.floor}")
    if len(set(ends)) > 1:
        raise Violation(f"two ends: {ends}")


def writer_steps(world: World, limits: Limits, variant: str) -> Steps:
    """Send, repeat, acknowledge, write a checkpoint, take an answer."""
    writer = world.writer
    if writer.ended:
        return
    for slot, status in enumerate(writer.slots):
        if status == UNSENT:
            if slot < writer.acknowledged + limits.window:
                sent = writer._replace(slots=changed(writer.slots, slot, SENT))
                yield f"put {slot}", send(world, slot)._replace(writer=sent)
            break
        if status == SENT and writer.repeats < limits.repeats:
            again = writer._replace(repeats=writer.repeats + 1)
            yield f"put {slot} again", send(world, slot)._replace(writer=again)
    for slot, status in enumerate(writer.slots):
        in_turn = slot == writer.acknowledged or variant == "acknowledges out of order"
        if status == CONFIRMED and slot >= writer.acknowledged and in_turn:
            told = writer._replace(acknowledged=slot + 1)
            yield f"acknowledge {slot}", world._replace(writer=told)
    if writer.checkpoints < limits.checkpoints and writer.acknowledged > world.floor:
        more = writer._replace(checkpoints=writer.checkpoints + 1)
        yield "checkpoint", world._replace(writer=more, floor=writer.acknowledged)
    for index, (slot, applied) in enumerate(world.answers):
        rest = world._replace(answers=world.answers[:index] + world.answers[index + 1 :])
        # A refusal alone proves nothing, so the writer reads the slot back.
        mine = applied or variant == "takes 412 for success" or world.slots[slot] == DATA
        if mine:
            slots = changed(writer.slots, slot, CONFIRMED)
            yield f"{slot} is mine", rest._replace(writer=writer._replace(slots=slots))
        else:
            # A seal, or the object was deleted, so the sequence went on without this writer.
            yield f"{slot} is not mine", rest._replace(writer=writer._replace(ended=True))


def send(world: World, slot: int) -> World:
    return world._replace(requests=tuple(sorted((*world.requests, slot))))


def network_steps(world: World) -> Steps:
    """Requests are applied at any time, or lost; answers arrive, or are lost."""
    for slot in sorted(set(world.requests)):
        index = world.requests.index(slot)
        rest = world._replace(requests=world.requests[:index] + world.requests[index + 1 :])
        applied = world.slots[slot] == EMPTY
        acted = rest
        if applied:
            acted = rest._replace(slots=changed(world.slots, slot, DATA))
        answers = tuple(sorted((*world.answers, (slot, applied))))
        yield f"put {slot} {'applied' if applied else 'refused'}", acted._replace(answers=answers)
        yield f"put {slot} acted on, answer lost", acted
        yield f"put {slot} lost", rest


def recoverer_steps(world: World, number: int, variant: str) -> Steps:
    """Read the checkpoint, put barriers, scan, seal, look at the checkpoint again."""
    me = world.recoverers[number]
    if me.end is not None:
        return

    def step(name: str, mine: Recoverer, slots: tuple[str, ...] | None = None) -> tuple[str, World]:
        others = world.recoverers
        all_of_them = (*others[:number], mine, *others[number + 1 :])
        after = world._replace(recoverers=all_of_them, slots=slots or world.slots)
        return f"recoverer {number} {name}", after

    if world.retired is not None and variant != "late recoverer ignores the retirement":
        yield step("is told the end", me._replace(end=world.retired))
        return
    if me.start is None:
        yield step("begins", Recoverer(world.floor, world.floor))
        return
    if me.found is not None:
        if world.floor > me.found and variant != "does not look at the checkpoint again":
            yield step("begins again", Recoverer(world.floor, world.floor))
        else:
            yield step("is done", me._replace(end=me.found))
        return
    if me.cursor == len(world.slots):
        # The writer has filled all slots of this small world.
        yield step("is done", me._replace(end=me.cursor))
        return
    for ahead in range(me.cursor + 1, len(world.slots)):
        if world.slots[ahead] == EMPTY:
            yield step(f"puts a barrier at {ahead}", me, changed(world.slots, ahead, SEAL))
    yield step(*scan(world, me, variant))


def scan(
    world: World, me: Recoverer, variant: str
) -> tuple[str, Recoverer, tuple[str, ...] | None]:
    """Look at one slot."""
    at = me.cursor
    if world.slots[at] == DATA:
        return f"passes {at}", me._replace(cursor=at + 1), None
    if world.slots[at] == SEAL:
        return f"meets the seal at {at}", me._replace(found=at), None
    if variant == "does not seal":
        return f"takes the hole at {at} for the end", me._replace(found=at), None
    if variant == "seals behind the last object":
        last = max((n for n, slot in enumerate(world.slots) if slot != EMPTY), default=-1) + 1
        slots = changed(world.slots, last, SEAL) if last < len(world.slots) else None
        return f"seals {last}", me._replace(found=last), slots
    # The second look decides, whether it finds this recoverer's seal or another's.
    return f"seals {at}", me, changed(world.slots, at, SEAL)


def collector_steps(world: World, variant: str) -> Steps:
    """Retire the recovered WAL. Delete slots below a checkpoint or of a retired WAL, but never the
    seal."""
    if world.retired is None:
        for end in {r.end for r in world.recoverers if r.end is not None}:
            yield f"retire at {end}", world._replace(retired=end)
    floor = world.floor if world.retired is None else world.retired
    for slot, content in enumerate(world.slots):
        superfluous = content != EMPTY and slot < floor
        barrier = content == SEAL and world.retired is not None and slot > world.retired
        seal = content == SEAL and slot == world.retired
        if superfluous or barrier or (seal and variant == "collector deletes the seal"):
            yield f"delete {slot}", world._replace(slots=changed(world.slots, slot, EMPTY))


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        yield from writer_steps(world, limits, variant)
        yield from network_steps(world)
        for number in range(len(world.recoverers)):
            yield from recoverer_steps(world, number, variant)
        yield from collector_steps(world, variant)

    return Model(beginning(limits), steps, check)


def catch(variant: str, states_max: int) -> Outcome:
    """Explore a broken variant."""
    return model(Limits(), variant).explore(states_max)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, partial(catch, states_max=3_000_000))
    return explore_or_walk(arguments, model(Limits()), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
