"""FlushTopics (20000), Tidelog's own: have a topic's decided records in its table."""

from __future__ import annotations

from tidelog.protocol.fields import array, int16, int32, int64, string
from tidelog.protocol.message import Request, Response, Struct


class FlushTopic(Struct):
    """Partitions of one topic, which the broker that is asked must lead."""

    name: str = string()
    partitions: list[int] = array(int32)


class FlushTopicsRequest(
    Request["FlushTopicsResponse"], api_key=20_000, versions=(0, 0), flexible=0
):
    """Answered when all that is below the last stable offset now is in the table, or when the time
    is over."""

    timeout_ms: int = int32()
    topics: list[FlushTopic] = array(FlushTopic)


class FlushPartitionResult(Struct):
    """How far the table has come, as of the answer; the other offsets as of the request, -1 where
    they are not known. `held_at_offset`: where the earliest transaction begins that was open, which
    holds back what lies behind; -1 where nothing is held back."""

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
