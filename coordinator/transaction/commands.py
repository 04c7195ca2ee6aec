"""What is asked of the transaction coordinator, and what it answers: requests without their wire
form. Errors are those of the newest versions; `wire_errors` says what older ones are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    NO_EPOCH,
    NO_ID,
    NO_TRANSACTION,
    EnlistedPartition,
    Transaction,
)
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode


class Release(Enum):
    """When a success may be told (rule H2); errors always wait until what they rest on is
    durable."""

    APPENDED = "appended"
    """To a leader that shares the coordinator's WAL, where the addition lies ahead of the batch."""
    DURABLE = "durable"
    """To any other leader, who then admits the transaction's first batch; and to the producer. It
    would go on in that transaction, and a partition where the one before is open still, since its
    marker was lost, could not tell whose its batches are."""


class Identity(NamedTuple):
    """A producer id and epoch, as a producer states them."""

    producer_id: ProducerId
    epoch: ProducerEpoch


ANONYMOUS: Final = Identity(NO_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """Give the producer of a transactional id its identity; fence the one before.

    `identity`: the one that it has and wants to go on from (KIP-360), or ANONYMOUS. `fresh_id`: a
    producer id that was never given out, once FreshIdNeeded has asked for one.
    """

    transactional_id: str
    timeout_ms: int
    identity: Identity = ANONYMOUS
    fresh_id: ProducerId | None = None


@dataclass(frozen=True, slots=True)
class FreshIdNeeded:
    """Nothing was done: ask again with a producer id that was never given out."""


@dataclass(frozen=True, slots=True)
class IdentityReply:
    """The identity with which the producer goes on, or why there is none."""

    error: ErrorCode
    producer_id: ProducerId = NO_ID
    epoch: ProducerEpoch = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Enlist partitions; a group's offsets are enlisted as the partition that keeps them.
    `client_version`: the `transaction.version` that the producer speaks."""

    transactional_id: str
    identity: Identity
    partitions: frozenset[EnlistedPartition]
    client_version: int
    release: Release = Release.APPENDED


@dataclass(frozen=True, slots=True)
class AddReply:
    """Whether they are enlisted, and in which transaction (rule H1)."""

    error: ErrorCode
    ordinal: int = NO_TRANSACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Ask whether partitions are enlisted in the ongoing transaction (KIP-890, part 1)."""

    transactional_id: str
    identity: Identity
    partitions: frozenset[EnlistedPartition]
    release: Release = Release.DURABLE


@dataclass(frozen=True, slots=True)
class VerifyReply:
    """The transaction's ordinal; `missing` are not enlisted: TRANSACTION_ABORTABLE for them."""

    error: ErrorCode
    ordinal: int = NO_TRANSACTION
    missing: frozenset[EnlistedPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commit or abort. `fresh_id` as with InitProducer."""

    transactional_id: str
    identity: Identity
    commit: bool
    client_version: int
    fresh_id: ProducerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersSettled:
    """These partitions have the marker of this transaction, or will never get one.

    They have it when it is durable, or lies in the coordinator's own WAL ahead of what is appended
    next. They never get one if the topic is gone, or if a newer producer epoch or coordinator was
    there first. What concerns any transaction but the one being ended is ignored.
    """

    transactional_id: str
    producer_id: ProducerId
    ordinal: int
    partitions: frozenset[EnlistedPartition]


@dataclass(frozen=True, slots=True)
class SettledReply:
    """Taken note of."""

    is_complete: bool
    """Whether it was the last one: the transaction has ended everywhere."""


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """The state of a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class DescribeTransactionReply:
    """The transaction; None with an error."""

    error: ErrorCode
    transaction: Transaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """The transactional ids in these states, of these producers, whose transaction has gone on for
    longer than `duration_ms`. Empty or negative: any."""

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1


class TransactionListing(NamedTuple):
    """A transactional id in brief."""

    transactional_id: str
    producer_id: ProducerId
    state: TransactionState


@dataclass(frozen=True, slots=True)
class ListTransactionsReply:
    """The transactional ids of one coordinator, not looked through yet (`listing.chosen`): with
    many of them that takes its time, which others need not wait for."""

    asked: ListTransactions
    transactions: Mapping[str, Transaction]
    """All of them, as of one moment; a copy."""
    now_ms: int


Command: TypeAlias = (
    InitProducer
    | AddPartitions
    | VerifyPartitions
    | EndTransaction
    | MarkersSettled
    | DescribeTransaction
    | ListTransactions
)
Reply: TypeAlias = (
    IdentityReply
    | FreshIdNeeded
    | AddReply
    | VerifyReply
    | SettledReply
    | DescribeTransactionReply
    | ListTransactionsReply
)
