"""The transaction coordinator's decisions: records, replies, and markers to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.coordinator.decision import Decision, Turn
from tidelog.coordinator.transaction.commands import Reply
from tidelog.coordinator.transaction.log_records import TransactionRecord, TransactionStored
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.identifiers import ProducerEpoch, ProducerId


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers of one decided transaction; MarkersSettled will name each of their partitions."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    coordinator_epoch: int
    commit: bool
    ordinal: int
    transaction_version: int
    partitions: frozenset[EnlistedPartition]


@dataclass(frozen=True, slots=True)
class TransactionDecision(Decision[TransactionRecord, Reply]):
    """A decision with the markers that follow from it (rule H3).

    Leaders with the coordinator's WAL get them at once, right behind the records. All others get
    them when the records are durable.
    """

    markers: Sequence[Markers] = ()


@dataclass(slots=True)
class TransactionTurn(Turn[TransactionRecord, Reply]):
    """A decision in progress."""

    markers: list[Markers] = field(default_factory=list)

    def store(self, transactional_id: str, transaction: Transaction) -> None:
        """Add the record of the transaction."""
        self.persist(TransactionStored(transactional_id, transaction))

    def decide_outcome(
        self, transactional_id: str, prepared: Transaction, coordinator_epoch: int
    ) -> None:
        """Add the record and the markers of a decided transaction; without partitions, its end."""
        self.store(transactional_id, prepared)
        if prepared.partitions:
            self.markers.append(markers_of(transactional_id, prepared, coordinator_epoch))
        else:
            self.store(transactional_id, prepared.completed(self.now.time_ms))

    def decision(self) -> TransactionDecision:
        return TransactionDecision(
            self.records,
            self.replies,
            self.replies_when_appended,
            limits=self.limits,
            markers=self.markers,
        )


def markers_of(transactional_id: str, prepared: Transaction, coordinator_epoch: int) -> Markers:
    """All markers of a decided transaction."""
    return Markers(
        transactional_id,
        prepared.producer_id,
        prepared.producer_epoch,
        coordinator_epoch,
        prepared.state.is_commit,
        prepared.ordinal,
        prepared.client_version,
        prepared.partitions,
    )
