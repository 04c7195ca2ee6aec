"""The inputs and outputs of coordinators' machines.

A machine is pure. `decide` takes a command and returns the records to write and the replies;
`apply` applies a record. A request that waits for others (a join) gets its reply from a later
decision, under its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NewType, TypeVar

from tidelog.protocol.error_codes import ErrorCode

Token = NewType("Token", int)
"""Identifies a request until its single answer."""

RecordT = TypeVar("RecordT")
ReplyT = TypeVar("ReplyT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class Now(NamedTuple):
    """The time, twice: `monotonic_ms` for timers, `time_ms` (since 1970) for stored times."""

    monotonic_ms: int
    time_ms: int


class BatchProducer(NamedTuple):
    """The transaction, decided by another coordinator, that records belong to.

    They are written as a batch of its producer, and count when it commits.
    """

    producer_id: int
    producer_epoch: int
    ordinal: int
    """The transaction's ordinal (rule H1)."""


class LimitMet(NamedTuple):
    """A request is refused because of a limit, which has the name of its setting."""

    error: ErrorCode
    setting: str
    why: str


@dataclass(frozen=True, slots=True)
class Decision(Generic[RecordT_co, ReplyT_co]):
    """Records to append and apply in this order, and replies.

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
    """A decision in progress, and its time."""

    now: Now
    records: list[RecordT] = field(default_factory=list)
    replies: list[tuple[Token, ReplyT]] = field(default_factory=list)
    replies_when_appended: list[tuple[Token, ReplyT]] = field(default_factory=list)
    producer: BatchProducer | None = None
    limits: list[LimitMet] = field(default_factory=list)

    def persist(self, record: RecordT) -> None:
        """Add a record."""
        self.records.append(record)

    def reply(self, token: Token, reply: ReplyT) -> None:
        """Answer a request."""
        self.replies.append((token, reply))

    def reply_when_appended(self, token: Token, reply: ReplyT) -> None:
        """Answer a request without waiting until the records are durable."""
        self.replies_when_appended.append((token, reply))

    def refuse(self, limit: LimitMet) -> ErrorCode:
        """The error for a request that meets a limit. The limit is in the decision."""
        self.limits.append(limit)
        return limit.error

    def decision(self) -> Decision[RecordT, ReplyT]:
        return Decision(
            self.records, self.replies, self.replies_when_appended, self.producer, self.limits
        )
