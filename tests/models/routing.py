"""A model of a transaction whose coordinator and partition move between brokers (rules H1 to H3).

Two brokers, each with a view of the metadata log that may be behind. One leads the partition of
`__transaction_state`, one leads partition p; both may be given away (when all entries are durable),
or be lost with a fenced broker (with the entries that are not durable). p stands for a data
partition, and for one of `__consumer_offsets`: the group coordinator admits TxnOffsetCommit as a
leader admits a first batch. The topic of p may be deleted and created again under its name.
Requests and answers are delayed and repeated for ever. `transaction` explores one coordinator with
two partitions.

A transaction enlists p by its name. So a marker may find no topic: it was deleted, or the view is
older than the topic. A coordinator settles such a marker only by a view that it has read after its
Prepare. A partition that admitted a batch existed when the coordinator verified it, which was
before Prepare: that view has it. An answer UNKNOWN_TOPIC_OR_PARTITION of another broker settles
nothing, since that broker's view may be behind.

A leader that does not know of the deletion writes the marker into the old topic and acknowledges
it. So the coordinator verifies a batch only by a view in which the name is that of the leader's
topic, and a marker names the topic that its sender means. Then the view of a missing topic need not
be newer than Prepare. That rule stays for leaders of earlier releases, which name no topic.

In every state: durable entries of the coordinator know the open transaction of each live partition,
so it will end; markers agree with the decision; no record follows its transaction's marker; a
commit that was acknowledged has its record, unless the topic was deleted. From every state the
transaction can end.

    python -m tests.models.routing              the protocol, all states
    python -m tests.models.routing --walks      long random runs with wider limits
    python -m tests.models.routing --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk
from tests.models.ownership_world import put as changed

EMPTY, ONGOING, PREPARED, COMPLETE = "Empty", "Ongoing", "Prepared", "Complete"
COMMIT, ABORT, DATA = "commit", "abort", "data"
BROKERS = (0, 1)


class Limits(NamedTuple):
    """The limits of the world."""

    transactions: int = 1
    batches: int = 1
    fences: int = 1
    moves: int = 1
    deletions: int = 1
    creations: int = 1


WIDE = Limits(transactions=3, batches=4, fences=2, moves=3, deletions=2, creations=2)

REMOTE_UNKNOWN = "a marker is settled by another broker's answer"
NEVER_SETTLED = "the marker of a deleted topic is never settled"
BY_NAME = "a batch is verified by the topic's name alone"
NO_REFRESH = "a refused marker goes to the same broker again"
EARLY_MARKERS = "markers leave before Prepare is durable"
EARLY_ACKNOWLEDGEMENT = "a marker is acknowledged before it is durable"
EARLY_VERIFICATION = "a verification is answered from entries that are not durable"
NO_LEASE = "a fenced coordinator answers"
NO_ENDED = "a leader forgets ended transactions when the partition moves"
ANY_ORDINAL = "a marker ends the open transaction whichever it names"

VARIANTS = {
    REMOTE_UNKNOWN: Limits(fences=0, moves=0),
    NEVER_SETTLED: Limits(fences=0, moves=0, creations=0),
    BY_NAME: Limits(fences=0, moves=0),
    NO_REFRESH: Limits(fences=0, deletions=0),
    EARLY_MARKERS: Limits(moves=0, deletions=0),
    EARLY_ACKNOWLEDGEMENT: Limits(moves=0, deletions=0),
    EARLY_VERIFICATION: Limits(moves=0, deletions=0),
    NO_LEASE: Limits(moves=0),
    NO_ENDED: Limits(fences=0, deletions=0),
    ANY_ORDINAL: Limits(transactions=2, fences=0, moves=0, deletions=0),
}
"""Broken variants, each with a small world in which it fails."""


class Version(NamedTuple):
    """The metadata log after one more entry."""

    coordinator: int
    topic: int | None
    """The topic's id, or None if no topic has the name."""
    leader: int


class Transaction(NamedTuple):
    """The coordinator's stored state of a transaction."""

    ordinal: int = 0
    state: str = EMPTY
    outcome: str = ""


class Entry(NamedTuple):
    """An entry of p: data or a marker."""

    kind: str
    ordinal: int


class Log(NamedTuple):
    """The log of one topic's partition. When the partition moves, all of its log is durable."""

    durable: tuple[Entry, ...] = ()
    tail: tuple[Entry, ...] = ()

    @property
    def all(self) -> tuple[Entry, ...]:
        return self.durable + self.tail


class Marker(NamedTuple):
    """A marker on its way to a broker. It may arrive again and again."""

    ordinal: int
    outcome: str
    to: int
    topic: int


class Verification(NamedTuple):
    """A coordinator's answer on its way: the guard's number, and the open transaction."""

    guard: int
    ordinal: int


class World(NamedTuple):
    """Metadata log and views, both logs, the network, and memories."""

    versions: tuple[Version, ...] = (Version(0, 0, 1),)
    views: tuple[int, ...] = (0, 0)
    durable: tuple[Transaction, ...] = (Transaction(),)
    tail: tuple[Transaction, ...] = ()
    logs: tuple[Log, ...] = (Log(),)
    """The logs by topic id."""
    guard: int | None = None
    """The newest topic's leader waits for this verification."""
    guards: int = 0
    verifications: frozenset[Verification] = frozenset()
    markers: frozenset[Marker] = frozenset()
    unknown: frozenset[int] = frozenset()
    """Ordinals of markers that a broker has answered with UNKNOWN_TOPIC_OR_PARTITION."""
    settled: frozenset[int] = frozenset()
    """Ordinals whose marker counts as written at the coordinator."""
    is_fresh: bool = False
    """Whether the coordinator has read the metadata log since its Prepare."""
    zombie: Transaction = Transaction()
    """For NO_LEASE: the transaction in the memory of a fenced coordinator."""
    acknowledged: tuple[int, int] | None = None
    """The client's batch: (topic id, ordinal)."""
    committed: frozenset[tuple[int, int]] = frozenset()
    """Acknowledged batches whose commit was acknowledged."""
    fences: int = 0
    moves: int = 0
    deletions: int = 0

    @property
    def now(self) -> Version:
        return self.versions[-1]

    @property
    def memory(self) -> Transaction:
        return (self.durable + self.tail)[-1]

    def view(self, broker: int) -> Version:
        return self.versions[self.views[broker]]


Steps: TypeAlias = Iterator[tuple[str, World]]


def ended(log: tuple[Entry, ...]) -> int:
    """The newest transaction that has a marker."""
    return max((entry.ordinal for entry in log if entry.kind != DATA), default=0)


def opened(log: tuple[Entry, ...]) -> int | None:
    """The transaction that has data and no marker."""
    found = [entry.ordinal for entry in log if entry.kind == DATA and entry.ordinal > ended(log)]
    return found[0] if found else None


def check(world: World) -> None:
    """Check the rules on the durable state, which hold in every state."""
    known = world.durable[-1]
    decided = {each.ordinal: each.outcome for each in world.durable if each.outcome}
    for topic, log in enumerate(world.logs):
        entries = log.durable
        for number, entry in enumerate(entries):
            if entry.kind == DATA:
                if entry.ordinal <= ended(entries[:number]):
                    raise Violation(f"a record of {entry.ordinal} after its marker")
            elif decided.get(entry.ordinal) != entry.kind:
                raise Violation(f"{entry}, decided was {decided.get(entry.ordinal)}")
        ordinal = opened(entries)
        will_end = known.ordinal == ordinal and known.state in (ONGOING, PREPARED)
        if topic == world.now.topic and ordinal is not None and not will_end:
            raise Violation(f"transaction {ordinal} is open for ever, {known}")
    for topic, ordinal in world.committed:
        if decided.get(ordinal) != COMMIT or Entry(DATA, ordinal) not in world.logs[topic].durable:
            raise Violation(f"{ordinal} was acknowledged as committed and is not")


def has_ended(world: World) -> bool:
    """The goal: no transaction is in progress."""
    return world.durable[-1].state in (EMPTY, COMPLETE) and not world.tail


def metadata_steps(world: World, limits: Limits) -> Steps:
    """Moves, fences, deletion and creation; views catch up."""
    now = world.now

    def entered(version: Version, after: World) -> World:
        return after._replace(versions=(*world.versions, version))

    for broker in BROKERS:
        if world.views[broker] < len(world.versions) - 1:
            newest = changed(world.views, broker, len(world.versions) - 1)
            yield f"{broker} applies the metadata log", world._replace(views=newest)
    other = world._replace(moves=world.moves + 1)
    if world.moves < limits.moves:
        if not world.tail:
            # The receiver coordinates when it has read the move.
            views = changed(world.views, 1 - now.coordinator, len(world.versions))
            moved = other._replace(settled=frozenset(), is_fresh=False, views=views)
            yield (
                "the coordinator moves",
                entered(now._replace(coordinator=1 - now.coordinator), moved),
            )
        if now.topic is not None and not world.logs[now.topic].tail:
            yield (
                "p moves",
                entered(now._replace(leader=1 - now.leader), other._replace(guard=None)),
            )
    if world.fences < limits.fences:
        for broker in BROKERS:
            yield f"{broker} is fenced", fenced(world, broker)
    if now.topic is not None and world.deletions < limits.deletions:
        after = world._replace(deletions=world.deletions + 1, guard=None)
        yield "the topic is deleted", entered(now._replace(topic=None), after)
    if now.topic is None and len(world.logs) <= limits.creations:
        for leader in BROKERS:
            created = now._replace(topic=len(world.logs), leader=leader)
            after = world._replace(logs=(*world.logs, Log()))
            yield f"the topic is created at {leader}", entered(created, after)


def fenced(world: World, broker: int) -> World:
    """The other broker takes over all partitions. Entries that were not durable are lost."""
    now = world.now
    after = world._replace(fences=world.fences + 1)
    if now.coordinator == broker:
        after = after._replace(
            tail=(), settled=frozenset(), is_fresh=False, zombie=world.durable[-1]
        )
        now = now._replace(coordinator=1 - broker)
    if now.leader == broker:
        if now.topic is not None:
            log = world.logs[now.topic]._replace(tail=())
            after = after._replace(logs=changed(world.logs, now.topic, log), guard=None)
        now = now._replace(leader=1 - broker)
    # A successor with the same id has read the log. The other broker knows the partitions that it
    # took over.
    newest = len(world.versions)
    return after._replace(versions=(*world.versions, now), views=(newest,) * len(BROKERS))


def durability_steps(world: World) -> Steps:
    """Entries become durable in order."""
    if world.tail:
        first, *rest = world.tail
        after = world._replace(durable=(*world.durable, first), tail=tuple(rest))
        yield f"durable: {first}", after
    if world.now.topic is not None and world.logs[world.now.topic].tail:
        log = world.logs[world.now.topic]
        log = Log(log.all[: len(log.durable) + 1], log.tail[1:])
        yield "p is durable", world._replace(logs=changed(world.logs, world.now.topic, log))


def append(world: World, entry: Entry) -> World:
    assert world.now.topic is not None
    log = world.logs[world.now.topic]
    log = log._replace(tail=(*log.tail, entry))
    return world._replace(logs=changed(world.logs, world.now.topic, log))


def client_steps(world: World, limits: Limits) -> Steps:
    """AddPartitionsToTxn, a batch, EndTxn; the coordinator's timeout."""
    memory, durable, topic = world.memory, world.durable[-1], world.now.topic
    if memory.state in (EMPTY, COMPLETE) and memory.ordinal < limits.transactions:
        begun = Transaction(memory.ordinal + 1, ONGOING)
        yield "p is added", world._replace(tail=(*world.tail, begun), acknowledged=None)
    # A batch may be delayed until its transaction has ended.
    can_arrive = memory.ordinal > 0 and topic is not None and world.guard is None
    if can_arrive and world.guards < limits.batches:
        waiting = world._replace(guard=world.guards, guards=world.guards + 1)
        yield "a batch waits for its verification", waiting
    if memory.state == ONGOING:
        sent = Entry(DATA, memory.ordinal)
        if topic is not None and sent in world.logs[topic].durable:
            acknowledged = topic, memory.ordinal
            if acknowledged != world.acknowledged:
                yield "the batch is acknowledged", world._replace(acknowledged=acknowledged)
        for outcome in (COMMIT, ABORT):
            if outcome == ABORT or world.acknowledged is not None:
                prepared = memory._replace(state=PREPARED, outcome=outcome)
                after = world._replace(tail=(*world.tail, prepared), is_fresh=False)
                yield outcome, after
    if durable.outcome == COMMIT and world.acknowledged not in (None, *world.committed):
        assert world.acknowledged is not None
        if world.acknowledged[1] == durable.ordinal:
            told = world.committed | {world.acknowledged}
            yield "the commit is answered", world._replace(committed=told)


def verification_steps(world: World, variant: str) -> Steps:
    """The coordinator answers from durable entries. A leader admits unless the transaction's end
    has come."""
    if world.guard is not None:
        sources = [world.memory if variant == EARLY_VERIFICATION else world.durable[-1]]
        if variant == NO_LEASE:
            sources.append(world.zombie)
        is_known = world.view(world.now.coordinator).topic == world.now.topic
        for known in sources if is_known or variant == BY_NAME else ():
            answer = Verification(world.guard, known.ordinal)
            if known.state == ONGOING and answer not in world.verifications:
                answers = world.verifications | {answer}
                yield "the coordinator verifies", world._replace(verifications=answers)
    for answer in world.verifications:
        if answer.guard == world.guard:
            assert world.now.topic is not None
            entries = world.logs[world.now.topic].all
            after = world._replace(guard=None)
            is_new = Entry(DATA, answer.ordinal) not in entries
            forgets = variant == NO_ENDED and world.moves > 0
            if is_new and (answer.ordinal > ended(entries) or forgets):
                yield "p admits the batch", append(after, Entry(DATA, answer.ordinal))
            else:
                yield "p refuses the batch", after


def marker_steps(world: World, variant: str) -> Steps:
    """Send markers to the leader in the coordinator's view, settle them, and complete."""
    memory, here = world.memory, world.now.coordinator
    known = memory if variant == EARLY_MARKERS else world.durable[-1]
    view = world.view(here)
    is_due = known.state == PREPARED and known == memory
    if is_due and memory.ordinal not in world.settled:
        yield from settle_steps(world, view, variant)
        to = world.versions[0].leader if variant == NO_REFRESH else view.leader
        if view.topic is not None:
            marker = Marker(known.ordinal, known.outcome, to, view.topic)
            if marker not in world.markers:
                yield f"{marker} is sent", world._replace(markers=world.markers | {marker})
    for marker in world.markers:
        yield from arrival_steps(world, marker, variant)
    if is_due and memory.ordinal in world.settled:
        complete = memory._replace(state=COMPLETE)
        yield "completes", world._replace(tail=(*world.tail, complete))


def settle_steps(world: World, view: Version, variant: str) -> Steps:
    """The marker is durable in p, or a view that is newer than Prepare has no such topic."""
    ordinal, topic = world.memory.ordinal, world.now.topic
    after = world._replace(settled=world.settled | {ordinal})
    if topic is not None:
        log = world.logs[topic]
        entries = log.all if variant == EARLY_ACKNOWLEDGEMENT else log.durable
        if Entry(world.memory.outcome, ordinal) in entries:
            yield "the marker is acknowledged", after
    if not world.is_fresh:
        newest = changed(world.views, world.now.coordinator, len(world.versions) - 1)
        yield "the coordinator refreshes its view", world._replace(views=newest, is_fresh=True)
    if view.topic is None and world.is_fresh and variant != NEVER_SETTLED:
        yield "there is no such topic", after
    if ordinal in world.unknown and variant == REMOTE_UNKNOWN:
        yield "another broker knows no such topic", after


def arrival_steps(world: World, marker: Marker, variant: str) -> Steps:
    """The leader appends a marker once; a broker that does not lead refuses it."""
    view, topic = world.view(marker.to), world.now.topic
    if view.topic is None and marker.ordinal not in world.unknown:
        unknown = world.unknown | {marker.ordinal}
        yield f"{marker.to} knows no such topic", world._replace(unknown=unknown)
    # A giver knows at once that it no longer leads the partition. A receiver learns it when it has
    # opened the partition.
    leads = topic is not None and marker.to == world.now.leader and view.topic == topic
    if marker.topic != topic and (view.topic, view.leader) == (marker.topic, marker.to):
        memory = world.memory
        if (memory.state, memory.ordinal) == (PREPARED, marker.ordinal):
            settled = world._replace(settled=world.settled | {marker.ordinal})
            yield f"{marker} is acknowledged in the deleted topic", settled
    if topic is None or not leads or marker.topic != topic:
        return
    entries = world.logs[topic].all
    ordinal = marker.ordinal
    if variant == ANY_ORDINAL:
        ordinal = opened(entries) or ordinal
    if ordinal > ended(entries):
        yield f"{marker} arrives", append(world, Entry(marker.outcome, ordinal))


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        yield from metadata_steps(world, limits)
        yield from durability_steps(world)
        yield from client_steps(world, limits)
        yield from verification_steps(world, variant)
        yield from marker_steps(world, variant)

    return Model(World(), steps, check, has_ended)


def catch(variant: str) -> Outcome:
    """Look for a broken variant's violation."""
    return model(VARIANTS[variant], variant).explore(1_000_000)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, catch)
    return explore_or_walk(arguments, model(Limits()), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
