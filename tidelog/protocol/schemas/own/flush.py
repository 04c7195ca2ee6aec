"""FlushTopics (20000), Tidelog's own: flush a topic's decided records into its table."""

from __future__ import annotations

from tidelog.protocol.fields import array, int16, int32, int64, string
from tidelog.protocol.message import Request, Response, Struct


class FlushTopic(Struct):
    """Partitions of one topic. The receiving broker must lead them."""

    name: str = string()
    partitions: list[int] = array(int32)


class FlushTopicsRequest(
    Request["FlushTopicsResponse"], api_key=20_000, versions=(0, 0), flexible=0
):
    """Flush all records below the current last stable offset into the table.

    The broker answers once they are in the table, or at the timeout.
    """

    timeout_ms: int = int32()
    topics: list[FlushTopic] = array(FlushTopic)


class FlushPartitionResult(Struct):
    """The table's next offset at the answer; the other offsets at the request, -1 if unknown.

    `held_at_offset` is the start of the earliest open transaction, which holds back later records.
    It is -1 without one.
    """

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    table_next_offset: int = int64(default=-1)
    high_watermark: int = int64(default=-1)
    held_at_offset: int = int64(default=-1)
    held_by_producer_id: int = int64(default=-1)


class FlushTopicResult(Struct):
    """The partitions of one topic."""

    name: str = string()
    partitions: list[FlushPartitionResult] = array(FlushPartitionResult)


class FlushTopicsResponse(Response, api_key=20_000, versions=(0, 0), flexible=0):
    """Results by partition."""

    topics: list[FlushTopicResult] = array(FlushTopicResult)
