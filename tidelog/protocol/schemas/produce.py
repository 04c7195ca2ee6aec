"""Produce (0): append record batches."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, int16, int32, int64, records, string, struct, uuid
from tidelog.protocol.message import Request, Response, Struct
from tidelog.protocol.wire import Buffer


class PartitionProduceData(Struct):
    """The batches for one partition."""

    index: int = int32()
    records: Buffer | None = records(nullable="0+")


class TopicProduceData(Struct):
    """One topic to append to; named up to version 12, by id from 13."""

    name: str = string("0-12")
    topic_id: UUID = uuid("13+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Request["ProduceResponse"], api_key=0, versions=(0, 13), flexible=9):
    """Append batches. With acks 0 the broker does not answer.

    Versions 0 to 2 decode, since brokers must advertise them (KAFKA-18659). No broker accepts their
    record formats any more.
    """

    transactional_id: str | None = string("3+", nullable="0+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    """The reason for the refusal of one batch (KIP-467)."""

    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable="0+", default=None)


class ProduceLeaderIdAndEpoch(Struct):
    """The partition's current leader, for a client that asked the wrong broker (KIP-951)."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Struct):
    """The offsets of the batches of one partition, or their refusal."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64("2+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+")
    error_message: str | None = string("8+", nullable="0+", default=None)
    current_leader: ProduceLeaderIdAndEpoch | None = struct(ProduceLeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = string("0-12")
    topic_id: UUID = uuid("13+")
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class ProduceNodeEndpoint(Struct):
    """The address of a broker that `current_leader` names (KIP-951)."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


class ProduceResponse(Response, api_key=0, versions=(0, 13), flexible=9):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32("1+")
    node_endpoints: list[ProduceNodeEndpoint] = array(ProduceNodeEndpoint, "10+", tag=0)
