"""The requests of a transactional producer, and the versions in which it sends them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership_requests import GroupMembership
from tidelog.client.operations import ProducerIdentity
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

PRODUCE_VERSION_MAX = {TransactionVersion.V1: 11, TransactionVersion.V2: 13}
OFFSETS_VERSION_MAX = {TransactionVersion.V1: 4, TransactionVersion.V2: 5}
END_VERSION_MAX = {TransactionVersion.V1: 4, TransactionVersion.V2: 5}
ENLIST_VERSION_MAX = 3
"""Only brokers send later versions of AddPartitionsToTxn."""


def enlist_partition(
    transactional_id: str, identity: ProducerIdentity, place: Place
) -> AddPartitionsToTxnRequest:
    """The request to add a partition to the transaction."""
    topic = AddPartitionsToTxnTopic(name=place.topic, partitions=[place.partition])
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[topic],
    )


def enlist_group(
    transactional_id: str, identity: ProducerIdentity, group_id: str
) -> AddOffsetsToTxnRequest:
    """The request to add a group's offsets to the transaction."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        group_id=group_id,
    )


def commit_offsets(
    transactional_id: str,
    identity: ProducerIdentity,
    group_id: str,
    offsets: Mapping[Place, int],
    membership: GroupMembership | None,
    metadata: str = "",
) -> TxnOffsetCommitRequest:
    """The request to store offsets that take effect when the transaction commits."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for place, offset in sorted(offsets.items()):
        topics.setdefault(place.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=place.partition,
                committed_offset=offset,
                committed_metadata=metadata,
            )
        )
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        topics=[
            TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
    if membership is not None:
        request.generation_id = membership.generation
        request.member_id = membership.member_id
        request.group_instance_id = membership.instance_id
    return request


def end_transaction(
    transactional_id: str, identity: ProducerIdentity, *, committed: bool
) -> EndTxnRequest:
    """The request to commit or abort the transaction."""
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        committed=committed,
    )
