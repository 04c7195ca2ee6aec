"""A model of the objects of verifiers: does the metadata log ever name one that was deleted?

Processes change the credentials at the same time, and stall between any two steps. A change writes
an object under a new key, reads the log, and appends the entry that names the object. A collector
deletes objects that the log does not name. Other entries come at any time.

Three rules make this safe, as for segments without a commit:

- An entry names an object only if its put began less than half the grace before the process looked
  at the state that the entry follows.
- An object may go only once the log has an entry that was put later than the object by more than
  the grace, both by the store's clock. The judged state has this entry.
- The number of an entry is taken once: a put on an older state fails.

No rule limits the time between the judgement and the deletion, nor between the look and the append.

    python -m tests.models.verifiers              the protocol, all states
    python -m tests.models.verifiers --walks      long random runs with wider limits
    python -m tests.models.verifiers --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk

GRACE = 2
HALF = GRACE // 2


class Limits(NamedTuple):
    """The limits of the world."""

    writers: int = 2
    keys: int = 2
    others: int = 1
    """Entries that name no object."""
    time: int = 4


WIDE = Limits(writers=3, keys=8, others=6, time=16)
VARIANTS = (
    "an object of any age is named",
    "the age is looked at before the state",
    "the age counts from the end of the put",
    "the collector goes by its own clock",
    "the collector keeps no object for its age",
)


class Entry(NamedTuple):
    """An entry of the metadata log: the object that it names, and the time of its put."""

    key: int | None
    put: int
    is_other: bool = False
    """Whether the entry names the same object as the one before."""


class Writer(NamedTuple):
    """phase: idle, writing, stored, written, aged (of a variant), decided."""

    phase: str = "idle"
    key: int = -1
    began: int = 0
    previous: int | None = None
    entry: int = 0
    """The number of the entry for which the decision was made."""


class World(NamedTuple):
    """The bucket, the processes, and the judgement of the collector."""

    now: int = 0
    log: tuple[Entry, ...] = (Entry(None, 0),)
    puts: tuple[int, ...] = ()
    """By key, the time of each object's put, or -1 while the put is on its way."""
    doomed: frozenset[int] = frozenset()
    """Objects that the collector has deleted, or will delete at any later time."""
    writers: tuple[Writer, ...] = ()


Steps: TypeAlias = Iterator[tuple[str, World]]


def present(world: World) -> int | None:
    return world.log[-1].key


def with_writer(world: World, number: int, writer: Writer) -> World:
    writers = tuple(writer if i == number else w for i, w in enumerate(world.writers))
    return world._replace(writers=writers)


def writer_steps(world: World, number: int, limits: Limits, variant: str) -> Steps:
    """One change of the credentials, and then the next."""
    me = world.writers[number]
    name = f"writer {number}"
    if me.phase == "idle":
        if len(world.puts) < limits.keys:
            key = len(world.puts)
            begun = Writer("writing", key, world.now, present(world))
            on_its_way = world._replace(puts=(*world.puts, -1))
            yield f"{name} begins", with_writer(on_its_way, number, begun)
    elif me.phase == "writing":
        puts = tuple(world.now if key == me.key else at for key, at in enumerate(world.puts))
        stored = with_writer(world, number, me._replace(phase="stored"))
        yield f"the put of {me.key} arrives", stored._replace(puts=puts)
    elif me.phase == "stored":
        began = world.now if variant == "the age counts from the end of the put" else me.began
        written = me._replace(phase="written", began=began)
        yield f"{name} hears of {me.key}", with_writer(world, number, written)
    elif me.phase == "written":
        young = world.now - me.began < HALF or variant == "an object of any age is named"
        if variant == "the age is looked at before the state":
            if young:
                aged = with_writer(world, number, me._replace(phase="aged"))
                yield f"{name} finds {me.key} young", aged
        elif young and present(world) == me.previous:
            decided = me._replace(phase="decided", entry=len(world.log))
            yield f"{name} decides", with_writer(world, number, decided)
        if not young or present(world) != me.previous:
            yield f"{name} starts again", with_writer(world, number, Writer())
    elif me.phase == "aged":
        if present(world) == me.previous:
            decided = me._replace(phase="decided", entry=len(world.log))
            yield f"{name} decides", with_writer(world, number, decided)
    elif me.phase == "decided":
        if me.entry == len(world.log):
            appended = (*world.log, Entry(me.key, world.now))
            yield f"{name} appends", with_writer(world, number, Writer())._replace(log=appended)
        else:
            # The number is taken: the writer looks at the new state and at the object's age again.
            retried = with_writer(world, number, me._replace(phase="written"))
            yield f"{name} finds its number taken", retried


def collector_steps(world: World, variant: str) -> Steps:
    """Judge by the listed objects and the newest entry; delete at any later time."""
    newest = world.log[-1]
    until = world.now if variant == "the collector goes by its own clock" else newest.put
    least = -1 if variant == "the collector keeps no object for its age" else GRACE
    for key, put in enumerate(world.puts):
        if put >= 0 and key not in world.doomed | {newest.key} and until - put > least:
            yield f"{key} may go", world._replace(doomed=world.doomed | {key})


def check(world: World) -> None:
    if present(world) in world.doomed:
        raise Violation(f"the log names {present(world)}, which is deleted, or will be")


def model(limits: Limits, variant: str = "") -> Model[World]:
    def steps(world: World) -> Steps:
        if world.now < limits.time:
            yield "time passes", world._replace(now=world.now + 1)
        for number in range(limits.writers):
            yield from writer_steps(world, number, limits, variant)
        if sum(each.is_other for each in world.log) < limits.others:
            other = Entry(present(world), world.now, True)
            yield "another entry", world._replace(log=(*world.log, other))
        yield from collector_steps(world, variant)

    return Model(World(writers=(Writer(),) * limits.writers), steps, check)


def caught(variant: str) -> Outcome:
    return model(Limits(), variant).explore(1_000_000)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, caught)
    return explore_or_walk(arguments, model(Limits()), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
