"""InitProducerId (22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
WriteTxnMarkers (27) and TxnOffsetCommit (28): transactions (KIP-98, KIP-890)."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import (
    OWN_TAGS_FROM,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)
from tidelog.protocol.message import Request, Response, Struct

NO_ORDINAL = -1
"""The transaction's number is not told: the sender is a foreign broker or tool."""


class InitProducerIdRequest(
    Request["InitProducerIdResponse"], api_key=22, versions=(0, 6), flexible=2
):
    """Get a producer id and epoch; with a transactional id, fence the earlier instances.

    From version 3 a producer with an identity gets the next epoch (KIP-360).
    """

    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Response, api_key=22, versions=(0, 6), flexible=2):
    """The identity; from version 6 with an earlier prepared transaction, if there is one
    (KIP-939).
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)


class AddPartitionsToTxnTopic(Struct):
    """The partitions of one topic; Tidelog's leaders also tell the topic's id."""

    name: str = string()
    partitions: list[int] = array(int32)
    topic_id: UUID = uuid("4+", tag=OWN_TAGS_FROM)


class AddPartitionsToTxnTransaction(Struct):
    """The partitions of one transaction, to add or, between brokers, to verify."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(
    Request["AddPartitionsToTxnResponse"], api_key=24, versions=(0, 5), flexible=3
):
    """Enlist partitions: of one transaction up to version 3, of several from 4, which only brokers
    use (KIP-890)."""

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult
    )


class AddPartitionsToTxnResult(Struct):
    """The results of one transaction; Tidelog tells its own brokers the transaction's ordinal."""

    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)
    ordinal: int = int64(default=NO_ORDINAL, tag=OWN_TAGS_FROM)


class AddPartitionsToTxnResponse(Response, api_key=24, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32()
    error_code: int = int16("4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )


class AddOffsetsToTxnRequest(
    Request["AddOffsetsToTxnResponse"], api_key=25, versions=(0, 4), flexible=3
):
    """Enlist the offsets of a group."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Response, api_key=25, versions=(0, 4), flexible=3):
    """Tells whether the offsets are enlisted."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


class EndTxnRequest(Request["EndTxnResponse"], api_key=26, versions=(0, 5), flexible=3):
    """Commit, or abort."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Response, api_key=26, versions=(0, 5), flexible=3):
    """The decision's error code; from version 5 with the next transaction's identity (KIP-890)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1)
    producer_epoch: int = int16("5+", default=-1)


class WritableTxnMarkerTopic(Struct):
    """The partitions of one topic; Tidelog's coordinators also tell the topic's id."""

    name: str = string()
    partition_indexes: list[int] = array(int32)
    topic_id: UUID = uuid(tag=OWN_TAGS_FROM)


class WritableTxnMarker(Struct):
    """The marker of one producer; Tidelog's coordinators also tell the transaction's ordinal."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8("2+")
    ordinal: int = int64(default=NO_ORDINAL, tag=OWN_TAGS_FROM)


class WriteTxnMarkersRequest(
    Request["WriteTxnMarkersResponse"], api_key=27, versions=(1, 2), flexible=1
):
    """Write the markers of decided transactions. Coordinators send it to leaders."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Struct):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Response, api_key=27, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


class TxnOffsetCommitRequestPartition(Struct):
    """The next offset to consume, with the metadata of the client."""

    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("2+", default=-1)
    committed_metadata: str | None = string(nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """The offsets of one topic."""

    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(
    Request["TxnOffsetCommitResponse"], api_key=28, versions=(0, 5), flexible=3
):
    """Commit offsets of a group as part of a transaction; fenced by generation from version 3
    (KIP-447)."""

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="0+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, api_key=28, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
