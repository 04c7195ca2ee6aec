"""What coordinators' machines are told, and what they answer.

A machine is pure. `decide` looks at a command and says which records are to be written and who is
to be answered; `apply` takes up a record. A request that has to wait for others (a join) is not
answered by the decision on it, but by a later one, under the token that came with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NewType, TypeVar

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


@dataclass(frozen=True, slots=True)
class Decision(Generic[RecordT_co, ReplyT_co]):
    """Records to be appended and applied in this order, and answers that may be given when they,
    and all before them, are durable."""

    records: Sequence[RecordT_co] = ()
    replies: Sequence[tuple[Token, ReplyT_co]] = ()


@dataclass(slots=True)
class Turn(Generic[RecordT, ReplyT]):
    """A decision being made, and when."""

    now: Now
    records: list[RecordT] = field(default_factory=list)
    replies: list[tuple[Token, ReplyT]] = field(default_factory=list)

    def persist(self, record: RecordT) -> None:
        """Have a record written."""
        self.records.append(record)

    def reply(self, token: Token, reply: ReplyT) -> None:
        """Answer a request."""
        self.replies.append((token, reply))

    def decision(self) -> Decision[RecordT, ReplyT]:
        """What was decided."""
        return Decision(self.records, self.replies)
