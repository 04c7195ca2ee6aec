"""DescribeProducers (61), DescribeTransactions (65) and ListTransactions (66): KIP-664."""

from __future__ import annotations

from tidelog.protocol.fields import array, int16, int32, int64, string
from tidelog.protocol.message import Request, Response, Struct


class DescribeProducersTopic(Struct):
    """The partitions of one topic."""

    name: str = string()
    partition_indexes: list[int] = array(int32)


class DescribeProducersRequest(
    Request["DescribeProducersResponse"], api_key=61, versions=(0, 0), flexible=0
):
    """Request the active producers of partitions."""

    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic)


class DescribedProducer(Struct):
    """A producer, as the partition's leader knows it."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class DescribeProducersPartitionResponse(Struct):
    """The producers of one partition."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[DescribedProducer] = array(DescribedProducer)


class DescribeProducersTopicResponse(Struct):
    """The producers of one topic."""

    name: str = string()
    partitions: list[DescribeProducersPartitionResponse] = array(DescribeProducersPartitionResponse)


class DescribeProducersResponse(Response, api_key=61, versions=(0, 0), flexible=0):
    """Producers by partition."""

    throttle_time_ms: int = int32()
    topics: list[DescribeProducersTopicResponse] = array(DescribeProducersTopicResponse)


class DescribeTransactionsRequest(
    Request["DescribeTransactionsResponse"], api_key=65, versions=(0, 0), flexible=0
):
    """Describe transactions by transactional id."""

    transactional_ids: list[str] = array(string)


class DescribedTransactionTopic(Struct):
    """The enlisted partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


class DescribedTransaction(Struct):
    """A transaction as its coordinator knows it."""

    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[DescribedTransactionTopic] = array(DescribedTransactionTopic)


class DescribeTransactionsResponse(Response, api_key=65, versions=(0, 0), flexible=0):
    """The requested transactions."""

    throttle_time_ms: int = int32()
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction)


class ListTransactionsRequest(
    Request["ListTransactionsResponse"], api_key=66, versions=(0, 2), flexible=0
):
    """List transactions, optionally by state, producer, age or pattern of the transactional id."""

    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="0+", default=None)


class ListedTransaction(Struct):
    """A transaction in brief."""

    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Response, api_key=66, versions=(0, 2), flexible=0):
    """The transactions that this broker coordinates."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[ListedTransaction] = array(ListedTransaction)
