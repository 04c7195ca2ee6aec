"""What coordinators' machines are told, and what they answer.

A machine is pure. `decide` looks at a command and says which records are to be written and who is
to be answered; `apply` takes up a record. A request that has to wait for others (a join) is not
answered by the decision on it, but by a later one, under the token that came with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, NewType, TypeVar

Token = NewType("Token", int)
"""Names a request that is to be answered, once."""

RecordT = TypeVar("RecordT")
ReplyT = TypeVar("ReplyT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class Now(NamedTuple):
    """The time, twice: `monotonic_ms` for timers, `time_ms` (since 1970) for what is stored."""

    monotonic_ms: int
    time_ms: int


class BatchProducer(NamedTuple):
    """The transaction of another coordinator that records are a part of: they are written as its
    producer's batch, and count when it is committed."""

    producer_id: int
    producer_epoch: int
    ordinal: int
    """The transaction's number (rule H1)."""


ID_LENGTH_MAX: Final = "id.length.max"


class LimitMet(NamedTuple):
    """Something was refused because of a limit."""

    setting: str
    why: str


@dataclass(frozen=True, slots=True)
class Decision(Generic[RecordT_co, ReplyT_co]):
    """Records to be appended and applied in this order, and answers.

    `replies` may be given when the records, and all before them, are durable;
    `replies_when_appended` at once. `producer`: the records are one batch of a transaction.
    """

    records: Sequence[RecordT_co] = ()
    replies: Sequence[tuple[Token, ReplyT_co]] = ()
    replies_when_appended: Sequence[tuple[Token, ReplyT_co]] = ()
    producer: BatchProducer | None = None
    limits: Sequence[LimitMet] = ()


@dataclass(slots=True)
class Turn(Generic[RecordT, ReplyT]):
    """A decision being made, and when."""

    now: Now
    records: list[RecordT] = field(default_factory=list)
    replies: list[tuple[Token, ReplyT]] = field(default_factory=list)
    replies_when_appended: list[tuple[Token, ReplyT]] = field(default_factory=list)
    producer: BatchProducer | None = None
    limits: list[LimitMet] = field(default_factory=list)

    def persist(self, record: RecordT) -> None:
        """Have a record written."""
        self.records.append(record)

    def reply(self, token: Token, reply: ReplyT) -> None:
        """Answer a request."""
        self.replies.append((token, reply))

    def reply_when_appended(self, token: Token, reply: ReplyT) -> None:
        """Answer a request without waiting until the answer is durable."""
        self.replies_when_appended.append((token, reply))

    def meet(self, setting: str, why: str) -> None:
        """Say that something is refused because of a limit."""
        self.limits.append(LimitMet(setting, why))

    def decision(self) -> Decision[RecordT, ReplyT]:
        """What was decided."""
        return Decision(
            self.records, self.replies, self.replies_when_appended, self.producer, self.limits
        )
