"""Applies each metadata record to the cluster's state, if it is valid (rules A1, A4, C)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.coordinator.cluster.records.bucket_format import is_cluster_id
from tidelog.coordinator.cluster.records.codec import INTEGER_MAX
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    ClusterCreated,
    CredentialsChanged,
    ListenersRegistered,
    LogEndAccepted,
    ProducerIdsAllocated,
    Record,
)
from tidelog.coordinator.cluster.state.broker_transitions import BROKER_TRANSITIONS
from tidelog.coordinator.cluster.state.draft import Draft, InvalidRecord
from tidelog.coordinator.cluster.state.setting_transitions import SETTING_TRANSITIONS
from tidelog.coordinator.cluster.state.topic_transitions import TOPIC_TRANSITIONS
from tidelog.identifiers import Epoch, ProducerId

if TYPE_CHECKING:
    from tidelog.coordinator.cluster.state.state import ClusterState


def extend(state: ClusterState, author: Epoch | None, records: Sequence[Record]) -> ClusterState:
    """The state after `records` as a part of the entry that follows `state.sequence`."""
    if not records:
        return state
    draft = Draft(state, author)
    if author is None:
        _check_without_author(state, records)
    for record in records:
        if author is not None:
            _check_author(draft, author, record)
        TRANSITIONS[type(record)](draft, record)
    return draft.finish()


def _check_author(draft: Draft, author: Epoch, record: Record) -> None:
    """Rule A4; within an entry too, so that an incarnation may fence itself in its last record."""
    info = draft.brokers.view.get(author)
    if info is None:
        raise InvalidRecord(record, f"its author, epoch {author}, is not registered")
    if info.fenced:
        raise InvalidRecord(record, f"its author, incarnation {info.incarnation}, is fenced")


def _check_without_author(state: ClusterState, records: Sequence[Record]) -> None:
    """Check the records of a process without an epoch.

    It may create the cluster, accept the loss of the log's end, or register itself and fence its
    own predecessor (rule B1).
    """
    if state.sequence < 0:
        if len(records) != 1 or not isinstance(records[0], ClusterCreated):
            raise InvalidRecord(records[0], "entry 0 creates the cluster and does nothing else")
        return
    *others, last = records
    if isinstance(last, ListenersRegistered) and others:
        *others, last = others
    if isinstance(last, LogEndAccepted) and not others:
        return
    if isinstance(last, CredentialsChanged) and not others and state.sequence == 0:
        return
    if not isinstance(last, BrokerRegistered):
        raise InvalidRecord(last, "its author is not registered")
    for record in others:
        predecessor = state.brokers.get(record.epoch) if isinstance(record, BrokerFenced) else None
        if predecessor is None or predecessor.broker_id != last.broker_id:
            raise InvalidRecord(record, "a registering broker may only fence its own predecessor")


def _cluster_created(draft: Draft, record: ClusterCreated) -> None:
    if draft.sequence != 0 or draft.cluster is not None:
        raise InvalidRecord(record, "only entry 0 creates a cluster")
    if not is_cluster_id(record.cluster_id):
        raise InvalidRecord(record, f"{record.cluster_id!r} is not a UUID in base64")
    versions = (record.format_version, record.minimum_reader_version, record.minimum_writer_version)
    if min(versions) < 1:
        raise InvalidRecord(record, f"versions {versions} begin below 1")
    draft.cluster = record


def _log_end_accepted(draft: Draft, record: LogEndAccepted) -> None:
    entries = record.entries
    if not 0 < entries.first <= draft.sequence <= entries.last:
        raise InvalidRecord(
            record,
            f"it is entry {draft.sequence}, which is not among entries {entries.first} to"
            f" {entries.last}",
        )
    if entries not in draft.lost_entries:
        draft.lost_entries = (*draft.lost_entries, entries)


def _producer_ids_allocated(draft: Draft, record: ProducerIdsAllocated) -> None:
    if record.first != draft.next_producer_id:
        raise InvalidRecord(
            record, f"the next free producer id is {draft.next_producer_id}, not {record.first}"
        )
    if not 1 <= record.count <= INTEGER_MAX - record.first:
        raise InvalidRecord(record, f"{record.count} ids cannot be given out from {record.first}")
    draft.next_producer_id = ProducerId(record.first + record.count)


TRANSITIONS: Mapping[type[Record], Callable[[Draft, Any], None]] = {
    **BROKER_TRANSITIONS,
    **TOPIC_TRANSITIONS,
    **SETTING_TRANSITIONS,
    ClusterCreated: _cluster_created,
    LogEndAccepted: _log_end_accepted,
    ProducerIdsAllocated: _producer_ids_allocated,
}
