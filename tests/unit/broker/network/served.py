"""Requests to a server on real sockets, and the memory that the server holds for them."""

from __future__ import annotations

from typing import Any

from tests.unit.broker.loopback import Loopback
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.telemetry.metrics import REQUEST_BYTES_IN_FLIGHT
from tidelog.protocol.schemas.cluster.metadata import DescribeClusterResponse
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchResponse,
)
from tidelog.protocol.schemas.groups import HeartbeatRequest
from tidelog.protocol.schemas.transactions import InitProducerIdRequest

Broker = Any


async def describe(_b: Broker, _r: object, _c: RequestContext) -> DescribeClusterResponse:
    return DescribeClusterResponse(cluster_id="c")


def init(number: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=number)


def beat(number: int) -> HeartbeatRequest:
    """Heartbeats are served side by side."""
    return HeartbeatRequest(generation_id=number)


def fetched(records: Any) -> FetchResponse:
    partition = FetchablePartitionResponse(aborted_transactions=None, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


def held_bytes(broker: Loopback) -> float:
    return gauge(broker, REQUEST_BYTES_IN_FLIGHT)


def gauge(broker: Loopback, name: str) -> float:
    """The value of a metric."""
    samples = {
        sample.name: sample.value
        for family in broker.metrics.registry.collect()
        for sample in family.samples
    }
    return samples[name]
