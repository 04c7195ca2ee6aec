"""TxnOffsetCommit (28): offsets of a group that count when their transaction commits.

The group's coordinator writes them into its partition as a batch of the producer's transaction. So
that partition must be in the transaction, like any other. The broker asks the transaction's
coordinator first (KIP-890), then the group's (KIP-447). The transaction's marker in that partition
decides. The transaction's coordinator may be on another broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.coordinate.transaction_admission import Admission, Wanted
from tidelog.broker.handlers.groups.group_offsets import RequestedOffsets
from tidelog.broker.handlers.groups.group_requests import ask, reply_of
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import TransactionServices
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.decision import BatchProducer
from tidelog.coordinator.group.commands import (
    CommitTransactionalOffsets,
    OffsetToCommit,
    PartitionErrors,
)
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.coordinator.transaction.commands import Identity
from tidelog.coordinator.transaction.transaction import OWN_EPOCHS_FROM
from tidelog.coordinator.transaction.wire_errors import error_for
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ADDS_PARTITION_FROM = 5
_NOT_OF_THE_GROUP = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors that concern the transaction's coordinator. A client would take them for the group
coordinator's and search for that one. It is told to ask again, as Kafka does after
NETWORK_EXCEPTION."""


async def txn_offset_commit(
    broker: TransactionServices, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Make the offsets pending; answered when durable."""
    offsets = RequestedOffsets(broker.metadata.state, request.topics)
    if not offsets.are_known:
        # Another broker may have created the partitions.
        await broker.renewal.renewed()
        offsets = RequestedOffsets(broker.metadata.state, request.topics)
    reply = PartitionErrors(ErrorCode.NONE)
    if not request.group_id:
        reply = PartitionErrors(ErrorCode.INVALID_GROUP_ID)
    elif offsets.existing:
        reply = await _commit(broker, request, context.api_version, offsets.existing)
        error = error_for(ApiKey.TXN_OFFSET_COMMIT, context.api_version, reply.error)
        reply = PartitionErrors(error, reply.partitions)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=number, error_code=code)
                    for number, code in codes
                ],
            )
            for name, codes in offsets.codes(reply)
        ]
    )


async def _commit(
    broker: TransactionServices,
    request: TxnOffsetCommitRequest,
    version: int,
    offsets: Sequence[OffsetToCommit],
) -> PartitionErrors:
    error, ordinal = await _admitted(broker, request, version)
    if error is not ErrorCode.NONE:
        return PartitionErrors(error)
    # Topics may have been deleted meanwhile: the group's coordinator has forgotten their offsets.
    state = broker.metadata.state
    left = [each for each in offsets if _exists(state, each)]
    gone = [
        (each.topic, each.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for each in offsets
        if not _exists(state, each)
    ]
    if not left:
        return PartitionErrors(ErrorCode.NONE, gone)
    command = CommitTransactionalOffsets(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        producer=BatchProducer(request.producer_id, request.producer_epoch, ordinal),
        offsets=left,
    )
    try:
        reply = await reply_of(PartitionErrors, ask(broker, request.group_id, command))
    except CoordinatorRefused as refusal:
        return PartitionErrors(refusal.code)
    return PartitionErrors(reply.error, [*reply.partitions, *gone])


def _exists(state: ClusterState, offset: OffsetToCommit) -> bool:
    topic = state.topic_named(offset.topic)
    return topic is not None and topic.topic_id == offset.topic_id


async def _admitted(
    broker: TransactionServices, request: TxnOffsetCommitRequest, version: int
) -> Admission:
    """The admission of the partition that holds the group's offsets."""
    topic = broker.metadata.state.topic_named(GROUP_TOPIC)
    if topic is None:
        return Admission(ErrorCode.NOT_COORDINATOR)
    number = partition_for(request.group_id, topic.partition_count)
    try:
        partition = broker.partitions.named(GROUP_TOPIC, number)
    except PartitionError as error:
        storage = error.code is ErrorCode.KAFKA_STORAGE_ERROR
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if storage else ErrorCode.NOT_COORDINATOR
        return Admission(code)
    identity = Identity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    if partition.log.is_in_transaction(*identity):
        return Admission(ErrorCode.NONE)
    transaction_version = OWN_EPOCHS_FROM if version >= ADDS_PARTITION_FROM else 0
    wanted = Wanted(request.transactional_id, identity, transaction_version)
    admission = (await broker.admissions.admit(wanted, [partition]))[partition]
    if admission.error in _NOT_OF_THE_GROUP:
        return Admission(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        # The group's coordinator writes to the partition that exists by then.
        broker.partitions.require(partition)
    except PartitionError:
        return Admission(ErrorCode.NOT_COORDINATOR)
    return admission
