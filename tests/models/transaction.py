"""A model of one transactional producer over two brokers: rules H1 to H3.

Broker A has the coordinator and partition p in one WAL; broker B has partition q. Entries become
durable in the order in which they were appended. A broker may die at any moment. It loses its
entries that are not durable, and comes back. Requests between brokers are lost, delayed and
repeated for ever. The producer goes on as soon as an addition is appended, as under TV2, where its
batch follows in the same WAL. A partition admits the batches of its open transaction without
asking. This is safe because the producer learns of an addition only when it is durable
(`EARLY_ADDITION`). The producer speaks TV1: its epoch does not change from one transaction to the
next, so only the ordinal tells them apart. A delayed batch may arrive at B during a later
transaction. (If that transaction has q too, only the sequence number protects it under TV1, which
is not modelled.)

In every state: durable entries of the coordinator know a partition's open transaction, so it will
end; markers agree everywhere, and with the durable decision; no record follows its own
transaction's marker; a commit that was acknowledged has its records in all of its partitions; no
partition has a record in a transaction to which the producer did not add it.

    python -m tests.models.transaction              the protocol
    python -m tests.models.transaction --walks      long random runs with wider limits
    python -m tests.models.transaction --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all

EMPTY, ONGOING, PREPARED, COMPLETE = "Empty", "Ongoing", "Prepared", "Complete"
COMMIT, ABORT, DATA, FOREIGN = "commit", "abort", "data", "another transaction's data"
IDLE, PRODUCING, ENDING, WAITING, FAILED = "idle", "producing", "ending", "waiting", "failed"
P, Q = "p", "q"
BOTH = frozenset({P, Q})

EARLY_VERIFICATION = "verification answered from entries that are not durable"
EARLY_MARKERS = "markers leave before Prepare is durable"
NO_ORDINALS = "a marker's ordinal ignored"
LATE_VERIFICATION = "a verification outlives the marker"
EARLY_ACKNOWLEDGEMENT = "a marker acknowledged before it is durable"
IMPATIENT_COMPLETE = "Complete without waiting for the markers"
EARLY_ANSWER = "EndTxn answered before Prepare is durable"
MARKER_FIRST = "the local marker before Prepare"
RESTORED_ADDITIONS = "a recovered coordinator adds verified partitions that it may have lost"
EARLY_ADDITION = "the producer told of an addition before it is durable"
VARIANTS = (
    EARLY_VERIFICATION,
    EARLY_MARKERS,
    NO_ORDINALS,
    LATE_VERIFICATION,
    EARLY_ACKNOWLEDGEMENT,
    IMPATIENT_COMPLETE,
    EARLY_ANSWER,
    MARKER_FIRST,
    RESTORED_ADDITIONS,
    EARLY_ADDITION,
)


class Limits(NamedTuple):
    """The limits of the world."""

    transactions: int = 2
    crashes: int = 2
    timeouts: int = 1
    delays: int = 0
    """Batches to q that may be delayed. If there are any, transactions may be without q."""


WIDE = Limits(transactions=4, crashes=4, timeouts=2)
DELAYED = Limits(transactions=2, crashes=1, timeouts=1, delays=1)


class Transaction(NamedTuple):
    """The coordinator's stored state of a transaction."""

    ordinal: int = 0
    state: str = EMPTY
    partitions: frozenset[str] = frozenset()
    outcome: str = ""
    added: frozenset[str] = frozenset()
    """Partitions added by the producer: the true set, which the coordinator may not know."""


class Entry(NamedTuple):
    """An entry of a partition: data or a marker of a transaction. Data may be another
    transaction's."""

    partition: str
    kind: str
    ordinal: int


LogEntry: TypeAlias = Transaction | Entry


class Guard(NamedTuple):
    """B waits for the verification with this number before it admits a batch."""

    number: int


class Marker(NamedTuple):
    """A marker for q on its way. It may arrive at any time, again and again."""

    ordinal: int
    outcome: str
    coordinator_epoch: int


class Verification(NamedTuple):
    """The answer to a guard, on its way for ever."""

    number: int
    ordinal: int


class World(NamedTuple):
    """Both logs, the network, and the memory of each process."""

    a_durable: tuple[LogEntry, ...] = ()
    a_tail: tuple[LogEntry, ...] = ()
    a_epoch: int = 1
    b_durable: tuple[Entry, ...] = ()
    b_tail: tuple[Entry, ...] = ()
    markers: frozenset[Marker] = frozenset()
    acknowledged: frozenset[int] = frozenset()
    """Ordinals whose marker in q is durable, according to the answers at the coordinator."""
    guard: Guard | None = None
    guards: int = 0
    verifications: frozenset[Verification] = frozenset()
    client: str = IDLE
    current: int = 0
    """The number of the client's transaction."""
    wanted: frozenset[str] = BOTH
    """The partitions to which the client sends a batch."""
    produced: frozenset[str] = frozenset()
    """The partitions that have acknowledged the transaction's data."""
    committed: frozenset[int] = frozenset()
    """The transactions whose commit was acknowledged."""
    crashes: int = 0
    timeouts: int = 0
    delays: int = 0
    delayed: bool = False
    """Whether a batch to q is on its way."""
    is_orphaned: bool = False
    """For EARLY_ADDITION: whether the client sends a batch to p after its addition was lost."""
    inherited: bool = False
    """For RESTORED_ADDITIONS: whether an earlier coordinator may have lost additions."""

    @property
    def a_log(self) -> tuple[LogEntry, ...]:
        return self.a_durable + self.a_tail

    @property
    def b_log(self) -> tuple[Entry, ...]:
        return self.b_durable + self.b_tail


Steps: TypeAlias = Iterator[tuple[str, World]]


def newest(log: Iterable[LogEntry]) -> Transaction:
    """The coordinator's state by its log."""
    found = Transaction()
    for entry in log:
        if isinstance(entry, Transaction):
            found = entry
    return found


class PartitionState(NamedTuple):
    """The state of a partition's log."""

    open: int | None
    ended: int
    """The newest transaction that has a marker."""
    outcomes: dict[int, str]
    data: set[int]


def read(log: Iterable[LogEntry], partition: str) -> PartitionState:
    """The partition's state by its log."""
    opened, ended = None, 0
    outcomes: dict[int, str] = {}
    data: set[int] = set()
    for entry in log:
        if isinstance(entry, Transaction) or entry.partition != partition:
            continue
        ordinal = entry.ordinal
        if entry.kind == FOREIGN:
            raise Violation(f"{partition}: a record of another transaction in {ordinal}")
        if entry.kind == DATA:
            if ordinal in outcomes:
                raise Violation(f"{partition}: a record of transaction {ordinal} after its marker")
            opened = ordinal
            data.add(ordinal)
            continue
        if outcomes.setdefault(ordinal, entry.kind) != entry.kind:
            raise Violation(f"{partition}: transaction {ordinal} is committed and aborted")
        if opened == ordinal:
            opened = None
        ended = max(ended, ordinal)
    return PartitionState(opened, ended, outcomes, data)


def check(world: World) -> None:
    """Check the rules on the durable state, which hold in every state."""
    known = newest(world.a_durable)
    found = {P: read(world.a_durable, P), Q: read(world.b_durable, Q)}
    decided = {
        entry.ordinal: entry.outcome
        for entry in world.a_durable
        if isinstance(entry, Transaction) and entry.outcome
    }
    added = {
        entry.ordinal: entry.added
        for entry in world.a_durable
        if isinstance(entry, Transaction) and entry.state == ONGOING
    }
    for name, partition in found.items():
        will_end = (
            known.ordinal == partition.open
            and name in known.partitions
            and known.state in (ONGOING, PREPARED)
        )
        if partition.open is not None and not will_end:
            raise Violation(f"{name}: transaction {partition.open} is open for ever, {known}")
        for ordinal, outcome in partition.outcomes.items():
            if decided.get(ordinal) != outcome:
                raise Violation(f"{name}: {outcome} of {ordinal}, decided {decided.get(ordinal)}")
        for ordinal in partition.data:
            if name not in added.get(ordinal, BOTH):
                raise Violation(f"{name}: a record in {ordinal}, to which {name} was not added")
    for ordinal in world.committed:
        is_whole = all(ordinal in found[name].data for name in added[ordinal])
        if decided.get(ordinal) != COMMIT or not is_whole:
            raise Violation(f"{ordinal} was acknowledged as committed and is not")


def durability_steps(world: World) -> Steps:
    """WALs become durable entry by entry."""
    if world.a_tail:
        first, *rest = world.a_tail
        yield (
            "A is durable",
            world._replace(a_durable=(*world.a_durable, first), a_tail=tuple(rest)),
        )
    if world.b_tail:
        batch, *others = world.b_tail
        yield (
            "B is durable",
            world._replace(b_durable=(*world.b_durable, batch), b_tail=tuple(others)),
        )


def crash_steps(world: World, limits: Limits, variant: str) -> Steps:
    """Records that are not durable are lost. The client's waits fail, or the client asks again."""
    if world.crashes == limits.crashes:
        return
    after = world._replace(crashes=world.crashes + 1)
    without_a = after._replace(
        a_tail=(),
        a_epoch=world.a_epoch + 1,
        acknowledged=frozenset(),
        inherited=variant == RESTORED_ADDITIONS,
    )
    failed = without_a._replace(client=IDLE if world.client == IDLE else FAILED)
    yield "A crashes", failed
    is_lost = newest(world.a_log).ordinal > newest(world.a_durable).ordinal
    if variant == EARLY_ADDITION and world.client == PRODUCING and is_lost:
        yield "A crashes; the client knows nothing of it", failed._replace(is_orphaned=True)
    knows = world.client in (PRODUCING, ENDING) and newest(world.a_durable).state == ONGOING
    if limits.delays and knows:
        yield "A crashes and the client goes on", without_a
    is_unacknowledged = Q in world.wanted - world.produced
    waits_for_b = world.client == PRODUCING and is_unacknowledged
    yield (
        "B crashes",
        after._replace(b_tail=(), guard=None, client=FAILED if waits_for_b else world.client),
    )


def client_steps(world: World, limits: Limits, variant: str) -> Steps:
    """Begin, produce to both partitions, commit; abort when anything fails."""
    memory, durable = newest(world.a_log), newest(world.a_durable)
    is_free = memory.state in (EMPTY, COMPLETE)
    if world.client == IDLE and world.current < limits.transactions and is_free:
        for wanted in (BOTH, frozenset({P})) if limits.delays else (BOTH,):
            begun = Transaction(memory.ordinal + 1, ONGOING, wanted, added=wanted)
            beginning = append(world, begun)._replace(
                client=PRODUCING, wanted=wanted, produced=frozenset(), current=world.current + 1
            )
            yield f"begins with {', '.join(sorted(wanted))}", beginning
    if world.client == PRODUCING:
        yield from produce_steps(world, memory, limits)
    if world.client == ENDING and memory.state == ONGOING:
        waiting = world._replace(client=WAITING, inherited=False)
        prepared = memory._replace(state=PREPARED, outcome=COMMIT)
        marker = Entry(P, COMMIT, memory.ordinal)
        order = (marker, prepared) if variant == MARKER_FIRST else (prepared, marker)
        yield "commits", append(waiting, *order)
    if world.client == WAITING:
        is_decided = durable.ordinal == memory.ordinal and durable.outcome == COMMIT
        if is_decided or variant == EARLY_ANSWER:
            done = world.committed | {memory.ordinal}
            yield "the commit is answered", world._replace(client=IDLE, committed=done)
    if world.client == FAILED and memory.state == ONGOING:
        yield "aborts", abort(world._replace(client=IDLE), memory)
    if world.client == FAILED and is_free:
        yield "has nothing to abort", world._replace(client=IDLE)
    opened = read(world.a_log, P).open if world.is_orphaned else None
    if opened is not None:
        joining = append(world, Entry(P, FOREIGN, opened))
        yield "p takes the batch for its open transaction", joining._replace(is_orphaned=False)
    if memory.state == ONGOING and world.timeouts < limits.timeouts:
        late = world._replace(
            timeouts=world.timeouts + 1, client=IDLE if world.client == IDLE else FAILED
        )
        yield "the transaction times out", abort(late, memory)


def append(world: World, *entries: LogEntry) -> World:
    return world._replace(a_tail=world.a_tail + entries)


def abort(world: World, memory: Transaction) -> World:
    prepared = memory._replace(state=PREPARED, outcome=ABORT)
    decided = world._replace(inherited=False)
    return append(decided, prepared, Entry(P, ABORT, memory.ordinal))


def produce_steps(world: World, memory: Transaction, limits: Limits) -> Steps:
    """A batch to each partition; q's leader asks the coordinator first."""
    at_p, at_q = Entry(P, DATA, memory.ordinal), Entry(Q, DATA, memory.ordinal)
    if P not in world.produced and memory.state == ONGOING:
        if at_p not in world.a_log:
            yield "p appends", append(world, at_p)
        elif at_p in world.a_durable:
            yield "p acknowledges", world._replace(produced=world.produced | {P})
    if Q in world.wanted - world.produced:
        if world.guard is None and at_q not in world.b_log:
            yield "B asks for verification", ask(world)
        if world.delays < limits.delays:
            sent = world._replace(delayed=True, delays=world.delays + 1)
            yield "a batch to q is delayed", sent
        if at_q in world.b_durable:
            yield "q acknowledges", world._replace(produced=world.produced | {Q})
    if world.produced == world.wanted:
        yield "the client ends", world._replace(client=ENDING)


def ask(world: World) -> World:
    return world._replace(guard=Guard(world.guards), guards=world.guards + 1)


def verification_steps(world: World, variant: str) -> Steps:
    """The coordinator answers from durable entries. The answer holds until the transaction's
    marker."""
    if world.delayed and world.guard is None:
        yield "the delayed batch arrives", ask(world)._replace(delayed=False)
    memory = newest(world.a_log)
    is_missing = Q not in memory.partitions and memory.state == ONGOING
    if world.guard is not None and world.inherited and is_missing:
        restored = memory._replace(partitions=memory.partitions | {Q})
        yield "the coordinator adds partitions that it may have lost", append(world, restored)
    known = newest(world.a_log if variant == EARLY_VERIFICATION else world.a_durable)
    if world.guard is not None:
        # Perhaps the outcome is decided already, but not durable: the answer was due before.
        is_open = known.state == ONGOING
        answer = Verification(world.guard.number, known.ordinal)
        if is_open and Q in known.partitions and answer not in world.verifications:
            answers = world.verifications | {answer}
            yield "the coordinator verifies", world._replace(verifications=answers)
    outlives = variant == LATE_VERIFICATION
    for answer in world.verifications:
        admitted = world._replace(guard=None, b_tail=(*world.b_tail, data_at_q(answer.ordinal)))
        if world.guard is not None and world.guard.number == answer.number:
            if outlives or answer.ordinal > read(world.b_log, Q).ended:
                yield "B admits the batch", admitted
            else:
                yield "B refuses the batch", world._replace(guard=None)
        elif (
            outlives
            and world.guard is None
            and world.client == PRODUCING
            and answer.ordinal == world.current
        ):
            rest = world.verifications - {answer}
            yield "B admits a late batch", admitted._replace(verifications=rest)


def data_at_q(ordinal: int) -> Entry:
    return Entry(Q, DATA, ordinal)


def marker_steps(world: World, variant: str) -> Steps:
    """Markers are sent when Prepare is durable, and repeated for ever. B acknowledges a durable
    marker."""
    memory = newest(world.a_log)
    known = memory if variant == EARLY_MARKERS else newest(world.a_durable)
    if known.state == PREPARED and memory[:2] == known[:2]:
        marker = Marker(known.ordinal, known.outcome, world.a_epoch)
        if marker not in world.markers:
            yield "the marker is sent", world._replace(markers=world.markers | {marker})
    for marker in world.markers:
        yield from arrivals(world, marker, variant)
        written = Entry(Q, marker.outcome, marker.ordinal)
        seen = world.b_log if variant == EARLY_ACKNOWLEDGEMENT else world.b_durable
        is_news = marker.ordinal == memory.ordinal and marker.ordinal not in world.acknowledged
        if written in seen and is_news:
            told = world.acknowledged | {marker.ordinal}
            yield "the marker is acknowledged", world._replace(acknowledged=told)
    if memory.state == PREPARED:
        local = Entry(P, memory.outcome, memory.ordinal)
        if local not in world.a_log:
            # The marker was lost, but Prepare was not.
            yield "the local marker is written again", append(world, local)
        elif memory.ordinal in world.acknowledged or variant == IMPATIENT_COMPLETE:
            complete = memory._replace(state=COMPLETE, partitions=frozenset())
            yield "completes", append(world, complete)


def arrivals(world: World, marker: Marker, variant: str) -> Steps:
    """B appends a marker, unless the transaction already has one."""
    state = read(world.b_log, Q)
    ordinal = marker.ordinal
    if variant == NO_ORDINALS and state.open is not None:
        ordinal = state.open
    elif marker.ordinal <= state.ended:
        return
    guard = world.guard if variant == LATE_VERIFICATION else None
    appended = (*world.b_tail, Entry(Q, marker.outcome, ordinal))
    yield "the marker arrives", world._replace(b_tail=appended, guard=guard)


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        yield from durability_steps(world)
        yield from crash_steps(world, limits, variant)
        yield from client_steps(world, limits, variant)
        yield from verification_steps(world, variant)
        yield from marker_steps(world, variant)

    return Model(World(), steps, check)


def catch(variant: str, states_max: int) -> Outcome:
    """Explore a broken variant."""
    limits = DELAYED if variant == RESTORED_ADDITIONS else Limits()
    return model(limits, variant).explore(states_max)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, partial(catch, states_max=3_000_000))
    if "--walks" in arguments:
        every = (WIDE, WIDE._replace(delays=2))
        outcomes = (model(limits).walk(walks=20_000, length=120, seed=1) for limits in every)
    else:
        every = (DELAYED, Limits())
        outcomes = (model(limits).explore(4_000_000) for limits in every)
    violations = 0
    for limits, outcome in zip(every, outcomes, strict=True):
        violations += outcome.violation is not None
        print(f"{limits}: {outcome}", flush=True)
    return violations


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
