"""The log of a run's operations: invoked, then ok, failed, or of unknown outcome."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from tests.simulation.policies import TopicPolicy

Kind = Literal[
    "send",
    "transaction",
    "poll",
    "assign",
    "join",
    "commit",
    "offsets",
    "identity",
    "trim",
    "view",
    "check",
]
Isolation = Literal["read_uncommitted", "read_committed"]
GroupProtocol = Literal["classic", "consumer"]
LEASE_SECONDS = 9.0
"""The session timeout of the simulated brokers."""


class Key(NamedTuple):
    """A partition, as clients name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Outcome(StrEnum):
    """The client's knowledge of an operation."""

    PENDING = "pending"
    OK = "ok"
    FAIL = "fail"
    """The operation certainly had no effect: it was refused, or the transaction aborted."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One value written to a partition. Values are unique in a run. `offset` is set once it is
    acknowledged."""

    key: Key
    value: str
    offset: int | None = None


@dataclass(slots=True)
class Poll:
    """The read of one partition: all records of [start, end) that the isolation shows."""

    key: Key
    start: int
    end: int
    records: list[tuple[int, str]]
    isolation: Isolation = "read_committed"
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start: int | None = None
    host: str = ""
    """The host that answered, if the client knows it."""


class Trim(NamedTuple):
    """A request to delete the records of a partition below an offset."""

    key: Key
    offset: int


@dataclass(slots=True)
class Claim:
    """A group tells a member that it owns these partitions in this generation. Under the consumer
    protocol (KIP-848) each heartbeat is a claim, in the member's epoch."""

    group: str
    generation: int
    member: str
    leader: bool
    keys: tuple[Key, ...]
    protocol: GroupProtocol = "classic"


@dataclass(slots=True)
class GroupOffsets:
    """Offsets of a group: committed outside of transactions, or found when asked for. The
    generation is that of the member that commits or asks, or -1 if it is no member."""

    group: str
    generation: int
    offsets: dict[Key, int]


@dataclass(frozen=True, slots=True)
class Identity:
    """A producer id and epoch, as issued to one instance of a transactional id."""

    transactional_id: str
    instance: str
    producer_id: int
    epoch: int
    own_epochs: bool
    """Whether each transaction has an epoch of its own (KIP-890)."""


@dataclass(slots=True)
class GroupAdvance:
    """A transaction moved a group's offset from `start` to `end`, and so consumed the inputs
    between."""

    group: str
    key: Key
    start: int
    end: int


@dataclass(slots=True)
class Operation:
    """One step of a client. `invoked` and `completed` are positions in the order of events."""

    number: int
    process: str
    kind: Kind
    invoked: int
    completed: int | None = None
    outcome: Outcome = Outcome.PENDING
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    advances: list[GroupAdvance] = field(default_factory=list)
    final: bool = False
    """Part of the read of everything after all faults are healed."""
    error: str = ""
    claim: Claim | None = None
    offsets: GroupOffsets | None = None
    identity: Identity | None = None
    """The identity that this operation issued."""
    is_repeated: bool = False
    """The client writes the values again and again, each time in a new transaction, until one of
    these is committed."""
    trim: Trim | None = None
    is_atomic: bool = False
    """A view that shows each transaction whole or not at all (rule G4)."""
    ends_from: int | None = None
    """For a transaction: the position in the order of events at which its client asked to commit
    it. If it was committed in the end, it was open before that."""
    began_at: float = 0.0
    """In seconds of the world's time, which no client knows."""
    ended_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of {self.process} ({self.outcome} {self.error})"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch as an independent reader found it at the end."""

    key: Key
    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int
    control: bool = False
    transactional: bool = False
    commits: bool = False
    """For a marker: whether it is a COMMIT."""
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A record of `__transaction_state`, in the order of the log."""

    transactional_id: str
    state: str
    producer_id: int
    epoch: int


class History:
    """Collects the operations of all clients in the order of their events."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.batches: list[StoredBatch] = []
        self.transactions: list[StoredTransaction] = []
        self.violations: list[str] = []
        self.deleted: set[Key] = set()
        """Partitions that were deleted on purpose: no client reads them at the end."""
        self.births: Counter[str] = Counter()
        """How often each topic was created that is deleted and created again under its name."""
        self.errors: Counter[str] = Counter()
        self.policies: Mapping[str, TopicPolicy] = {}
        """The policies by which topics may lose records. All other topics lose none."""
        self.taken_for_dead: Mapping[tuple[str, int], float] = {}
        """Living processes, by host and number, that another one took for dead, and when."""
        self.fenced_at: Mapping[tuple[str, int], float] = {}
        """When each process, by host and number, was fenced."""
        self.now: Callable[[], float] = lambda: 0.0
        self._events = 0

    def may_be_old(self, host: str, since: float, until: float) -> bool:
        """Whether a process of this host, which was taken for dead while it lives, may have
        answered between these times from what it knew before: its lease was fresh (B3).

        No other process serves its partitions before its fence. So its knowledge is old only from
        the fence on, and its lease ends at most LEASE_SECONDS later.
        """
        fences = [
            self.fenced_at[process]
            for process, taken_at in self.taken_for_dead.items()
            if process[0] == host and taken_at <= self.fenced_at.get(process, -math.inf)
        ]
        return any(since - LEASE_SECONDS <= fenced_at <= until for fenced_at in fences)

    def invoke(
        self,
        process: str,
        kind: Kind,
        sends: Iterable[Send] = (),
        final: bool = False,
    ) -> Operation:
        """An operation begins; its outcome is pending until one of the following is called."""
        operation = Operation(
            len(self.operations),
            process,
            kind,
            self._event(),
            sends=list(sends),
            final=final,
            began_at=self.now(),
        )
        self.operations.append(operation)
        return operation

    def ends(self, operation: Operation) -> None:
        """The client is about to ask for the transaction's commit."""
        operation.ends_from = self._event()

    def ok(self, operation: Operation) -> None:
        """The operation took effect. Its sends have their offsets, and its polls their records."""
        self._complete(operation, Outcome.OK, "")

    def fail(self, operation: Operation, error: str) -> None:
        """The operation certainly had no effect."""
        self._complete(operation, Outcome.FAIL, error)

    def unknown(self, operation: Operation, error: str) -> None:
        """The operation may have taken effect, or may do so later."""
        self._complete(operation, Outcome.UNKNOWN, error)

    def assign(self, process: str) -> None:
        """The process reads from other positions from now on."""
        self.ok(self.invoke(process, "assign"))

    def violate(self, text: str) -> None:
        """A fault that no schedule excuses, reported where it happened."""
        self.violations.append(text)

    def counts(self) -> Counter[str]:
        """How many operations of each kind had which outcome."""
        return Counter(f"{one.kind} {one.outcome}" for one in self.operations)

    def _complete(self, operation: Operation, outcome: Outcome, error: str) -> None:
        if operation.outcome is not Outcome.PENDING:
            raise RuntimeError(f"{operation} is completed twice")
        operation.completed = self._event()
        operation.ended_at = self.now()
        operation.outcome = outcome
        operation.error = error
        if error:
            self.errors[error] += 1

    def _event(self) -> int:
        self._events += 1
        return self._events
