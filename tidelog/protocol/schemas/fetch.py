"""Fetch (1): read record batches."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, int8, int16, int32, int64, records, string, struct, uuid
from tidelog.protocol.message import Request, Response, Struct
from tidelog.protocol.wire import Records


class FetchingReplica(Struct):
    """The fetching replica; -1 for clients (KIP-903)."""

    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Struct):
    """One partition and offset to read."""

    partition: int = int32()
    current_leader_epoch: int = int32("9+", default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid("17+", tag=0)
    high_watermark: int = int64("18+", default=2**63 - 1, tag=1)


class FetchTopic(Struct):
    """One topic to read; named up to version 12, by id from 13."""

    topic: str = string("0-12")
    topic_id: UUID = uuid("13+")
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    """Partitions to drop from the fetch session (KIP-227)."""

    topic: str = string("7-12")
    topic_id: UUID = uuid("13+")
    partitions: list[int] = array(int32)


class FetchRequest(Request["FetchResponse"], api_key=1, versions=(4, 18), flexible=12):
    """Read batches, waiting up to `max_wait_ms` for `min_bytes` of them."""

    cluster_id: str | None = string("12+", nullable="0+", default=None, tag=0)
    replica_id: int = int32("0-14", default=-1)
    replica_state: FetchingReplica | None = struct(FetchingReplica, "15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2147483647)
    isolation_level: int = int8()
    session_id: int = int32("7+")
    session_epoch: int = int32("7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+")


class DivergingEpoch(Struct):
    """The largest leader epoch not above the requested one, and its end offset."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Struct):
    """The partition's current leader, for a client that asked the wrong broker (KIP-951)."""

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Struct):
    """A snapshot to fetch instead; only KRaft uses it."""

    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Struct):
    """A producer whose transactional records from `first_offset` to its abort marker are
    aborted.
    """

    producer_id: int = int64()
    first_offset: int = int64()


class FetchablePartitionResponse(Struct):
    """The batches of one partition: the first one is whole, whatever its size.

    Decoding gives `records` as one view; encoding also takes a list of buffers.
    """

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64("5+", default=-1)
    diverging_epoch: DivergingEpoch | None = struct(DivergingEpoch, "12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId | None = struct(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable="0+")
    preferred_read_replica: int = int32("11+", default=-1)
    records: Records | None = records(nullable="0+")


class FetchableTopicResponse(Struct):
    """The batches of one topic."""

    topic: str = string("0-12")
    topic_id: UUID = uuid("13+")
    partitions: list[FetchablePartitionResponse] = array(FetchablePartitionResponse)


class NodeEndpoint(Struct):
    """The address of a broker that `current_leader` names (KIP-951)."""

    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


class FetchResponse(Response, api_key=1, versions=(4, 18), flexible=12):
    """Batches, and the offsets of each partition."""

    throttle_time_ms: int = int32()
    error_code: int = int16("7+")
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)
