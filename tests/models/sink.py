"""A model of the exactly-once sink: rules H7 to H9.

A driver commits batch after batch. For each, tasks have staged one object a partition, perhaps
twice (a repeated task). A commit call fences, looks, adopts, commits the offset, ends. It may stop
at each of these points for ever, or wake up at any time. Its requests arrive late, repeated or not
at all, even when the call has ended. Calls of one batch run side by side; calls of an earlier batch
(a zombie driver's) begin at any time. The leaders die and lose records that are not durable. This
model assumes that transactions are correct, which the model `transaction` explores.

In every state: each batch is committed whole and once in both partitions, or not at all; exactly
the batches that the committed offset has passed are committed; no object that a log refers to was
deleted.

    python -m tests.models.sink              the protocol
    python -m tests.models.sink --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all

FENCING, LOOKING, ADOPTING, ENDING, DONE, FAILED = range(6)
PARTITIONS = (0, 1)

REUSED_EPOCH = "commit calls share an epoch"
SPENT_EPOCH = "a transaction's end leaves the epoch as it is"
LOOKS_FIRST = "looks for the batch before it fences"
BLIND = "does not look for the batch"
NO_DEDUPE = "an adopt that is repeated is adopted again"
FORGOTTEN_DEDUPE = "only the leader's memory knows the adopted objects"
PARTIAL_ADOPT = "a staged object is adopted by halves"
OFFSET_AFTER = "the offset is committed behind the transaction"
OFFSET_BEFORE = "the offset is committed ahead of the transaction"
ANY_AGE = "staged objects are adopted at any age"
EARLY_COLLECTOR = "objects without a reference are collected at any age"
REFERENCES_FIRST = "the collector looks for references before it looks at the offset"
VARIANTS = (
    REUSED_EPOCH,
    SPENT_EPOCH,
    LOOKS_FIRST,
    BLIND,
    NO_DEDUPE,
    FORGOTTEN_DEDUPE,
    PARTIAL_ADOPT,
    OFFSET_AFTER,
    OFFSET_BEFORE,
    ANY_AGE,
    EARLY_COLLECTOR,
    REFERENCES_FIRST,
)


class Limits(NamedTuple):
    """The limits of the world."""

    batches: int = 2
    calls: int = 3
    attempts: int = 1
    crashes: int = 1
    timeouts: int = 0
    collects: bool = False


COLLECTED = Limits(batches=1, calls=2, attempts=2, crashes=0, collects=True)
WIDE = Limits(batches=3, calls=6, attempts=2, crashes=2, timeouts=1, collects=True)


class Staged(NamedTuple):
    """A staged object, identified by its name."""

    batch: int
    attempt: int
    partition: int


class Call(NamedTuple):
    """A commit call. From FENCING on, its requests up to its present phase may arrive at any
    time."""

    batch: int
    attempt: int
    step: int = FENCING
    epoch: int = 0
    adopted: frozenset[int] = frozenset()
    """The partitions that have acknowledged it."""
    furthest: int = FENCING


class Half(NamedTuple):
    """One of two record batches of a staged object, in a log."""

    staged: Staged
    number: int


Log: TypeAlias = tuple[Half, ...]
Logs: TypeAlias = tuple[Log, ...]
_NOTHING: Logs = ((), ())


class World(NamedTuple):
    """The memory of all processes, and the bucket."""

    batch: int = 0
    """The driver's batch."""
    calls: tuple[Call, ...] = ()
    epoch: int = 0
    is_open: bool = False
    """Whether the coordinator has a transaction of the present epoch."""
    pending: int = -1
    """The offset in the open transaction."""
    offset: int = -1
    """The batch that is committed, by the group's offset."""
    open_logs: Logs = _NOTHING
    """The records of the open transaction."""
    durable: tuple[int, ...] = (0, 0)
    """By partition, the number of these records that are durable."""
    known: frozenset[Staged] = frozenset()
    """For FORGOTTEN_DEDUPE: the objects that the leaders remember."""
    committed: Logs = _NOTHING
    ended: frozenset[int] = frozenset()
    """Epochs whose transactions are committed."""
    crashes: int = 0
    timeouts: int = 0
    ages: tuple[tuple[Staged, int], ...] = ()
    """Ages of objects that are not young. 1: no longer adopted. 2: collected."""
    seen: int = -1
    """The group's offset when the collector looked."""
    spare: frozenset[Staged] = frozenset()
    """The objects without a reference when a broken collector looked."""
    marked: frozenset[Staged] = frozenset()
    deleted: frozenset[Staged] = frozenset()


Steps: TypeAlias = Iterator[tuple[str, World]]


def check(world: World) -> None:
    """Check the rules that hold in every state."""
    for log in world.committed:
        counts = Counter((half.staged.batch, half.number) for half in log)
        for (batch, _), count in counts.items():
            if count > 1:
                raise Violation(f"batch {batch} is {count} times in a partition")
            if batch > world.offset:
                raise Violation(f"batch {batch} is in a partition, the offset is {world.offset}")
        for batch in range(world.offset + 1):
            if not counts[(batch, 0)] or not counts[(batch, 1)]:
                raise Violation(f"batch {batch} is not whole, the offset is {world.offset}")
    for log in (*world.committed, *world.open_logs):
        for half in log:
            if half.staged in world.deleted:
                raise Violation(f"{half.staged} is referred to and deleted")


def driver_steps(world: World, limits: Limits) -> Steps:
    """One call after the other, of this batch or (for a zombie) of an earlier one. When a call has
    returned, the driver goes on to the next batch."""
    if len(world.calls) < limits.calls:
        for batch in range(world.batch + 1):
            for attempt in range(limits.attempts):
                called = (*world.calls, Call(batch, attempt))
                yield f"a call of batch {batch}", world._replace(calls=called)
    is_done = any(call.step == DONE and call.batch == world.batch for call in world.calls)
    if is_done and world.batch + 1 < limits.batches:
        yield "the next batch", world._replace(batch=world.batch + 1)


def fence(world: World, variant: str) -> World:
    """InitProducerId: the open transaction is aborted, and the epoch is a new one."""
    if variant == REUSED_EPOCH:
        return world._replace(epoch=max(world.epoch, 1))
    return abort(world)


def abort(world: World) -> World:
    return world._replace(
        epoch=world.epoch + 1,
        is_open=False,
        pending=-1,
        open_logs=_NOTHING,
        durable=(0, 0),
        known=frozenset(),
    )


def call_steps(world: World, variant: str) -> Steps:
    """Each call advances by itself."""
    for number, call in enumerate(world.calls):

        def after(world: World, number: int = number, **changes: object) -> World:
            moved = world.calls[number]._replace(**changes)  # type: ignore[arg-type]
            if moved.step <= ENDING:
                moved = moved._replace(furthest=max(moved.furthest, moved.step))
            calls = (*world.calls[:number], moved, *world.calls[number + 1 :])
            return world._replace(calls=calls)

        begins = LOOKING if variant == LOOKS_FIRST else FENCING
        follows = FENCING if variant == LOOKS_FIRST else LOOKING
        looked = variant == LOOKS_FIRST and call.furthest == LOOKING
        if call.step == FENCING and not (begins == LOOKING and not looked):
            fenced = fence(world, variant)
            following = ADOPTING if looked else LOOKING
            yield f"{number} fences", after(fenced, step=following, epoch=fenced.epoch)
        elif call.step == LOOKING or (call.step == FENCING and begins == LOOKING):
            if world.offset >= call.batch and variant != BLIND:
                yield f"{number} finds its batch", after(world, step=DONE)
            elif follows == FENCING:
                yield f"{number} looks", after(world, step=FENCING, furthest=LOOKING)
            else:
                yield f"{number} looks", after(world, step=ADOPTING)
        elif call.step == ADOPTING:
            yield from acknowledgements(world, number, call, after)
            if call.adopted == frozenset(PARTITIONS):
                ahead = world
                if variant == OFFSET_BEFORE:
                    ahead = world._replace(offset=max(world.offset, call.batch))
                yield f"{number} goes on to the end", after(ahead, step=ENDING)
        elif call.step == ENDING and call.epoch in world.ended:
            behind = world
            if variant == OFFSET_AFTER:
                behind = world._replace(offset=max(world.offset, call.batch))
            yield f"{number} is answered", after(behind, step=DONE)
        is_under_way = LOOKING < call.step < DONE and call.epoch not in world.ended
        if is_under_way and call.epoch < world.epoch:
            yield f"{number} is fenced", after(world, step=FAILED)


def acknowledgements(world: World, number: int, call: Call, after: object) -> Steps:
    assert callable(after)
    for partition in PARTITIONS:
        durable = world.open_logs[partition][: world.durable[partition]]
        staged = Staged(call.batch, call.attempt, partition)
        is_there = any(half.staged == staged for half in durable)
        if partition not in call.adopted and is_there and call.epoch == world.epoch:
            told = call.adopted | {partition}
            yield f"{partition} answers {number}", after(world, adopted=told)


def arrivals(world: World, variant: str) -> Steps:
    """Requests that were sent once arrive now, for the first time or again."""
    for number, call in enumerate(world.calls):
        if call.furthest < ADOPTING or call.epoch != world.epoch:
            continue
        for partition in PARTITIONS:
            staged = Staged(call.batch, call.attempt, partition)
            yield from adoptions(world, f"{number}'s adopt", staged, variant)
        if call.furthest < ENDING:
            continue
        in_transaction = variant not in (OFFSET_AFTER, OFFSET_BEFORE)
        if in_transaction and world.pending != call.batch:
            enlisted = world._replace(is_open=True, pending=call.batch)
            yield f"{number}'s offset arrives", enlisted
        # The offset is answered before the end is sent; afterwards both may arrive again.
        if world.is_open and (world.pending == call.batch or not in_transaction):
            yield f"{number}'s end arrives", commit(world, variant)


def adoptions(world: World, who: str, staged: Staged, variant: str) -> Steps:
    """An adoption takes a young object, whole or not at all, and once in a transaction."""
    log = world.open_logs[staged.partition]
    if len(log) > 3 or staged in world.deleted:
        return
    is_known = any(half.staged == staged for half in log)
    if variant == FORGOTTEN_DEDUPE:
        is_known = staged in world.known
    if is_known and variant != NO_DEDUPE:
        return
    if dict(world.ages).get(staged, 0) > 0 and variant != ANY_AGE:
        return
    grown = (*log, Half(staged, 0), Half(staged, 1))
    logs = replaced(world.open_logs, staged.partition, grown)
    adopted = world._replace(is_open=True, open_logs=logs, known=world.known | {staged})
    yield f"{who} arrives at {staged.partition}", adopted


def replaced(items: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*items[:index], value, *items[index + 1 :])


def commit(world: World, variant: str) -> World:
    committed = tuple(
        done + new for done, new in zip(world.committed, world.open_logs, strict=True)
    )
    epoch = world.epoch + (variant not in (SPENT_EPOCH, REUSED_EPOCH))
    return world._replace(
        epoch=epoch,
        is_open=False,
        offset=max(world.offset, world.pending),
        pending=-1,
        open_logs=_NOTHING,
        durable=(0, 0),
        known=frozenset(),
        committed=committed,
        ended=world.ended | {world.epoch},
    )


def leader_steps(world: World, limits: Limits, variant: str) -> Steps:
    """WAL slots become durable, a leader dies, or the coordinator aborts a transaction that takes
    too long."""
    entry = 1 if variant == PARTIAL_ADOPT else 2
    for partition in PARTITIONS:
        done = world.durable[partition]
        if done < len(world.open_logs[partition]):
            durable = replaced(world.durable, partition, done + entry)
            yield f"{partition} is durable", world._replace(durable=durable)
            if world.crashes < limits.crashes:
                yield f"{partition} crashes", crash(world, partition)
        elif variant == FORGOTTEN_DEDUPE and done and world.crashes < limits.crashes:
            yield f"{partition} crashes", crash(world, partition)
    if world.is_open and world.timeouts < limits.timeouts:
        late = abort(world)._replace(timeouts=world.timeouts + 1)
        yield "the transaction times out", late


def crash(world: World, partition: int) -> World:
    kept = world.open_logs[partition][: world.durable[partition]]
    return world._replace(
        crashes=world.crashes + 1,
        open_logs=replaced(world.open_logs, partition, kept),
        known=frozenset(each for each in world.known if each.partition != partition),
    )


def collector_steps(world: World, variant: str) -> Steps:
    """Staged objects grow old, or their batch is over; objects without a reference are marked then,
    and deleted at any time later.

    The offset tells that a batch is over. Checkpoints tell that an object has no reference: they
    know the records that were durable when the offset was read, and not those appended by then."""
    appended = (*world.committed, *world.open_logs)
    referred = {half.staged for log in appended for half in log}
    durable = {
        half.staged
        for log, count in zip(appended, (*map(len, world.committed), *world.durable), strict=True)
        for half in log[:count]
    }
    ages = dict(world.ages)
    all_staged = {Staged(c.batch, c.attempt, p) for c in world.calls for p in PARTITIONS}
    if world.seen < world.offset:
        yield "the collector looks at the offset", world._replace(seen=world.offset)
    if variant == REFERENCES_FIRST:
        spare = frozenset(all_staged - durable) | world.spare
        if spare != world.spare:
            yield "the collector looks for references", world._replace(spare=spare)
    for staged in all_staged:
        age = ages.get(staged, 0)
        if age < 2:
            older = tuple(sorted({**ages, staged: age + 1}.items()))
            yield f"{staged} grows older", world._replace(ages=older)
        is_aged = (age == 2 or variant == EARLY_COLLECTOR) and staged not in referred
        is_spare = staged not in durable
        if variant == REFERENCES_FIRST:
            is_spare = staged in world.spare
        is_over = staged.batch <= world.seen and is_spare
        if (is_aged or is_over) and staged not in world.marked:
            yield f"{staged} is marked", world._replace(marked=world.marked | {staged})
    for staged in world.marked - world.deleted:
        yield f"{staged} is deleted", world._replace(deleted=world.deleted | {staged})


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        yield from driver_steps(world, limits)
        yield from call_steps(world, variant)
        yield from arrivals(world, variant)
        yield from leader_steps(world, limits, variant)
        if limits.collects:
            yield from collector_steps(world, variant)

    return Model(World(), steps, check)


def catch(variant: str, states_max: int) -> Outcome:
    """Explore a broken variant."""
    limits = Limits(calls=2)
    if variant == REUSED_EPOCH:
        limits = Limits(calls=2, attempts=2, crashes=0)
    elif variant == REFERENCES_FIRST:
        limits = Limits(batches=1, calls=1, crashes=0, collects=True)
    elif variant in (ANY_AGE, EARLY_COLLECTOR):
        limits = COLLECTED
    return model(limits, variant).explore(states_max)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, partial(catch, states_max=1_000_000))
    violations = 0
    for limits in (Limits(), COLLECTED):
        outcome = model(limits).explore(2_000_000)
        violations += outcome.violation is not None
        print(f"{limits}: {outcome}", flush=True)
    outcome = model(WIDE).walk(walks=5_000, length=150, seed=1)
    print(f"{WIDE}: {outcome}", flush=True)
    return violations + (outcome.violation is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
