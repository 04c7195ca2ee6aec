"""A world of transactions, and a reader that takes an atomic snapshot step by step while the world
changes (rule G4). Coordinators and partitions are lists. The coordinator's values alone decide the
outcome of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tidelog.bucket.views.decisions import (
    Decisions,
    TailTransaction,
    TransactionOutcome,
    excluded_transactions,
)
from tidelog.coordinator.transaction.log_records import (
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
)
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    NO_ID,
    EnlistedPartition,
    Transaction,
    created,
)
from tidelog.identifiers import ProducerId, TransactionName

IDS = ("a", "b")
PARTITIONS = 3
TOPIC = "t"
IDLE = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
VARIANTS = (
    "tails are read before the coordinators' states",
    "tables are read after the coordinators' states",
    "an unknown id is always new",
    "an unknown id is always old",
    "the newest outcome counts although it is complete",
)


class Entry(NamedTuple):
    """One batch of a partition: data of a transaction, or its marker."""

    name: TransactionName
    commit: bool | None
    """None for data."""
    at: int
    """The number of the event that made it durable."""


class Violation(AssertionError):
    """A snapshot shows a part of a transaction, or lacks a decided one."""


@dataclass
class World:
    """The durable state, and the history of all events."""

    now: int = 0
    log: list[TransactionRecord] = field(default_factory=list)
    snapshots: list[tuple[int, list[TransactionRecord]]] = field(default_factory=lambda: [(0, [])])
    partitions: list[list[Entry]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    tables: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    unmarked: dict[str, set[int]] = field(default_factory=dict)
    decided: dict[TransactionName, tuple[bool, int]] = field(default_factory=dict)
    """The decision, and its event's number."""
    next_producer_id: int = 0

    def store(self, key: str, transaction: Transaction) -> None:
        self.log.append(TransactionStored(key, transaction))
        self.transactions[key] = transaction

    def stable_end(self, number: int) -> int:
        """The last stable offset."""
        entries = self.partitions[number]
        ended = {entry.name for entry in entries if entry.commit is not None}
        for offset, entry in enumerate(entries):
            if entry.commit is None and entry.name not in ended:
                return offset
        return len(entries)

    # Possible steps. A step that is not allowed does nothing.

    def begin_or_write(self, random: Random) -> None:
        key, number = random.choice(IDS), random.randrange(PARTITIONS)
        before = self.transactions.get(key)
        if before is None:
            before = created(ProducerId(self.next_producer_id), 1000, self.now)
            self.next_producer_id += 1
            self.store(key, before)
        if before.state not in (*IDLE, TransactionState.ONGOING):
            return
        partition = EnlistedPartition(TOPIC, number)
        if before.state is not TransactionState.ONGOING or partition not in before.partitions:
            before = before.enlisting(frozenset({partition}), 2, self.now)
            self.store(key, before)
        name = TransactionName(before.producer_id, before.ordinal)
        self.partitions[number].append(Entry(name, None, self.now))

    def decide(self, random: Random) -> None:
        key, commit = random.choice(IDS), random.random() < 0.7
        before = self.transactions.get(key)
        if before is None:
            return
        begun = before.state is TransactionState.ONGOING
        if not begun and (commit or before.state not in IDLE or before.ordinal == 0):
            return
        next_id = NO_ID
        if random.random() < 0.3:
            next_id = ProducerId(self.next_producer_id)
            self.next_producer_id += 1
        after = before.prepared(
            commit=commit, client_version=2, next_producer_id=next_id, now_ms=self.now
        )
        self.store(key, after)
        self.unmarked[key] = {each.partition for each in after.partitions}
        if begun:
            name = TransactionName(before.producer_id, before.ordinal)
            self.decided[name] = commit, self.now

    def mark(self, random: Random) -> None:
        """Write a marker; behind the last one, completion."""
        key = random.choice(IDS)
        before = self.transactions.get(key)
        if before is None or not before.state.is_prepared:
            return
        left = self.unmarked[key]
        if left:
            number = left.pop()
            name = TransactionName(before.producer_id, before.ordinal)
            self.partitions[number].append(Entry(name, before.state.is_commit, self.now))
        else:
            self.store(key, before.completed(self.now))

    def take_over(self, random: Random) -> None:
        key = random.choice(IDS)
        before = self.transactions.get(key)
        if before is not None and before.state in IDLE:
            epoch = before.producer_epoch
            self.store(key, before.initialised(epoch, before.last_epoch, 1000, self.now))

    def expire(self, random: Random) -> None:
        key = random.choice(IDS)
        before = self.transactions.get(key)
        if before is not None and before.state in IDLE:
            self.log.append(TransactionRemoved(key))
            del self.transactions[key]

    def roll(self, random: Random) -> None:
        number = random.randrange(PARTITIONS)
        end = self.stable_end(number)
        self.tables[number] = random.randint(self.tables[number], end)

    def snapshot(self, random: Random) -> None:
        state: list[TransactionRecord] = [
            TransactionStored(key, each) for key, each in self.transactions.items()
        ]
        self.snapshots.append((len(self.log), state))


HAPPENINGS: tuple[tuple[Callable[[World, Random], None], int], ...] = (
    (World.begin_or_write, 8),
    (World.decide, 4),
    (World.mark, 10),
    (World.take_over, 1),
    (World.expire, 2),
    (World.roll, 2),
    (World.snapshot, 2),
)


class Reader:
    """Takes one snapshot; each `next` of `steps` is one read."""

    def __init__(self, world: World, variant: str) -> None:
        self.world = world
        self.variant = variant
        self.began = world.now
        self.tables = [0] * PARTITIONS
        self.tails: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self.decisions = Decisions()
        self.early = 0
        self.base = world.snapshots[-1]

    def steps(self) -> Iterator[None]:
        if self.variant == "tables are read after the coordinators' states":
            order = [self.states, self.read_tables, self.read_tails]
        elif self.variant == "tails are read before the coordinators' states":
            order = [self.read_tables, self.read_tails, self.states]
        else:
            order = [self.read_tables, self.states, self.read_tails]
        for phase in order:
            yield from phase()

    def read_tables(self) -> Iterator[None]:
        for number in range(PARTITIONS):
            self.tables[number] = self.world.tables[number]
            yield

    def read_tails(self) -> Iterator[None]:
        for number in range(PARTITIONS):
            self.tails[number] = list(self.world.partitions[number])
            yield

    def states(self) -> Iterator[None]:
        self.base = self.world.snapshots[-1]
        yield
        self.early = self.world.now
        yield
        offset, state = self.base
        for record in (*state, *self.world.log[offset:]):
            self.decisions.apply(record)
        if self.variant == "the newest outcome counts although it is complete":
            self.decisions = _Believing(self.decisions)
        yield

    def seen(self) -> dict[TransactionName, int]:
        """The number of rows of each transaction in the snapshot."""
        transactions: list[TailTransaction] = []
        for number in range(PARTITIONS):
            tail = self.tails[number][self.tables[number] :]
            marks = {entry.name: entry.at for entry in tail if entry.commit is not None}
            for name in {entry.name for entry in tail if entry.commit is None}:
                early = name in marks and marks[name] < self.early
                if self.variant == "an unknown id is always new":
                    early = False
                if self.variant == "an unknown id is always old":
                    early = name in marks
                transactions.append(TailTransaction(name, name not in marks, early))
        excluded = excluded_transactions([self.decisions], transactions)
        found: dict[TransactionName, int] = {}
        for number in range(PARTITIONS):
            entries = self.tails[number]
            aborted = {entry.name for entry in entries if entry.commit is False}
            for offset, entry in enumerate(entries):
                is_in = offset < self.tables[number] or entry.name not in excluded
                if entry.commit is None and is_in and entry.name not in aborted:
                    found[entry.name] = found.get(entry.name, 0) + 1
        return found


class _Believing(Decisions):
    """Takes the coordinator's newest outcome for the current transaction's."""

    def __init__(self, known: Decisions) -> None:
        super().__init__()
        self._by_producer = known._by_producer

    def outcome(self, name: TransactionName) -> TransactionOutcome:
        current = self._by_producer.get(name.producer_id)
        if current is not None and current.ordinal == name.ordinal and current.state.is_complete:
            return (
                TransactionOutcome.COMMITTED
                if current.state.is_commit
                else TransactionOutcome.NOT_COMMITTED
            )
        return super().outcome(name)


def play(random: Random, events: int, variant: str = "") -> int:
    """Play one history with one reader in it. Returns the number of transactions that the reader
    saw. Raises Violation."""
    world = World()
    actions = [action for action, weight in HAPPENINGS for _ in range(weight)]
    begins = random.randrange(events)
    pace = random.choice((0.03, 0.1, 0.5))
    reader: Reader | None = None
    steps: Iterator[None] = iter(())
    for event in range(events):
        world.now = event
        if event == begins:
            reader = Reader(world, variant)
            steps = reader.steps()
        if reader is not None and random.random() < pace:
            next(steps, None)
        random.choice(actions)(world, random)
    assert reader is not None
    for _ in steps:
        pass
    _judge(world, reader)
    return len(reader.seen())


def _judge(world: World, reader: Reader) -> None:
    rows: dict[TransactionName, int] = {}
    for entries in world.partitions:
        for entry in entries:
            if entry.commit is None:
                rows[entry.name] = rows.get(entry.name, 0) + 1
    seen = reader.seen()
    for name, count in rows.items():
        commit, when = world.decided.get(name, (False, world.now + 1))
        if seen.get(name, 0) not in (0, count):
            raise Violation(f"{seen[name]} of {count} rows of {name} are seen")
        if not commit and name in seen:
            raise Violation(f"{name} is seen, and was not committed")
        if commit and when < reader.began and name not in seen:
            raise Violation(f"{name} was committed before, and is not seen")
