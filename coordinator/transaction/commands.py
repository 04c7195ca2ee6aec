"""The transaction coordinator's commands and replies: requests without their wire form.

Errors are those of the newest versions; `wire_errors` maps them for older ones.
"""

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
    """When the coordinator may report a success (rule H2).

    An error always waits until the state behind it is durable.
    """

    APPENDED = "appended"
    """To a leader with the coordinator's WAL, where the addition precedes the batch."""
    DURABLE = "durable"
    """To any other leader, which then admits the transaction's first batch; and to the producer.

    The producer would continue in that transaction. If its addition were lost, a partition whose
    earlier transaction is still open (its marker was lost) could not tell the two apart.
    """


class Identity(NamedTuple):
    """A producer id and epoch, as the producer states them."""

    producer_id: ProducerId
    epoch: ProducerEpoch


ANONYMOUS: Final = Identity(NO_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """Give the producer of a transactional id its identity; fence the previous producer.

    `identity`: the producer's present one to continue from (KIP-360), or ANONYMOUS. `fresh_id`: a
    never used producer id, after a FreshIdNeeded reply.
    """

    transactional_id: str
    timeout_ms: int
    identity: Identity = ANONYMOUS
    fresh_id: ProducerId | None = None


@dataclass(frozen=True, slots=True)
class FreshIdNeeded:
    """Nothing was done: the caller asks again with a never used producer id."""


@dataclass(frozen=True, slots=True)
class IdentityReply:
    """The producer's new identity, or the error."""

    error: ErrorCode
    producer_id: ProducerId = NO_ID
    epoch: ProducerEpoch = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Enlist partitions; a group's offsets are enlisted as the partition that holds them.

    `client_version`: the producer's `transaction.version`.
    """

    transactional_id: str
    identity: Identity
    partitions: frozenset[EnlistedPartition]
    client_version: int
    release: Release = Release.APPENDED


@dataclass(frozen=True, slots=True)
class AddReply:
    """The transaction's ordinal if the partitions are enlisted (rule H1), or the error."""

    error: ErrorCode
    ordinal: int = NO_TRANSACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Check that partitions are enlisted in the ongoing transaction (KIP-890, part 1)."""

    transactional_id: str
    identity: Identity
    partitions: frozenset[EnlistedPartition]
    release: Release = Release.DURABLE


@dataclass(frozen=True, slots=True)
class VerifyReply:
    """The transaction's ordinal; `missing` partitions get TRANSACTION_ABORTABLE."""

    error: ErrorCode
    ordinal: int = NO_TRANSACTION
    missing: frozenset[EnlistedPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commit or abort. `fresh_id` as in InitProducer."""

    transactional_id: str
    identity: Identity
    commit: bool
    client_version: int
    fresh_id: ProducerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersSettled:
    """These partitions have this transaction's marker, or will never get one.

    They have it when it is durable, or precedes the next append in the coordinator's own WAL. They
    never get one if the topic is deleted, or if the partition has seen a newer producer epoch or
    coordinator. The coordinator ignores all transactions except the one being ended.
    """

    transactional_id: str
    producer_id: ProducerId
    ordinal: int
    partitions: frozenset[EnlistedPartition]


@dataclass(frozen=True, slots=True)
class SettledReply:
    """The reply to MarkersSettled."""

    is_complete: bool
    """Whether these were the last markers: the transaction has ended everywhere."""


@dataclass(frozen=True, slots=True)
class DescribeTransaction:
    """Asks for the state of a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class DescribeTransactionReply:
    """The transaction; None with an error."""

    error: ErrorCode
    transaction: Transaction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """Asks for the transactional ids in these states, of these producers, with these durations.

    The transaction must be open for longer than `duration_ms`. Empty or negative filters match all.
    """

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1


class TransactionListing(NamedTuple):
    """The summary of a transactional id."""

    transactional_id: str
    producer_id: ProducerId
    state: TransactionState


@dataclass(frozen=True, slots=True)
class ListTransactionsReply:
    """The transactional ids of one coordinator, not filtered yet (`listing.chosen`).

    Filtering many ids takes long, so a worker does it.
    """

    asked: ListTransactions
    transactions: Mapping[str, Transaction]
    """A copy of all transactions at one moment."""
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
