"""WriteTxnMarkers (27): ends transactions in partitions that this broker leads.

The coordinators of other brokers send it, and tools that end transactions unknown to any
coordinator (KIP-664). Answered when the markers are durable.

A coordinator's marker names its transaction by the ordinal (H1) and its topic by the id. A tool's
marker has neither and follows Kafka's rules. If a topic was deleted and created again under its
name, the id keeps the marker out of the new topic. Without the id the ordinal would do: the new
partition has another transaction open, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import TransactionServices
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.errors import TidelogError
from tidelog.identifiers import Slot
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.protocol.wire import NULL_UUID

logger = logging.getLogger(__name__)

NOTHING_WRITTEN = Slot(-1)
_OF_THE_VIEW = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Refusals that another view of the metadata log might not give."""


class _Outcome(NamedTuple):
    """The outcome of a marker in one partition."""

    partition: int
    code: ErrorCode
    slot: Slot = NOTHING_WRITTEN


def write_txn_markers(
    broker: TransactionServices, request: WriteTxnMarkersRequest, context: RequestContext
) -> Awaitable[WriteTxnMarkersResponse]:
    """Append the markers now, in the order of the connection's requests."""
    return _answer(broker, request, [_write(broker, each) for each in request.markers])


def _write(broker: TransactionServices, marker: WritableTxnMarker) -> list[list[_Outcome]]:
    """Append one transaction's markers; their outcomes by topic."""
    ended = EndedTransaction(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        ordinal=marker.ordinal,
        transaction_version=marker.transaction_version,
    )
    return [
        [_write_one(broker, ended, topic, number) for number in topic.partition_indexes]
        for topic in marker.topics
    ]


def _write_one(
    broker: TransactionServices,
    ended: EndedTransaction,
    topic: WritableTxnMarkerTopic,
    number: int,
) -> _Outcome:
    try:
        partition = broker.partitions.named(topic.name, number)
    except PartitionError as error:
        return _Outcome(number, error.code)
    if topic.topic_id not in (NULL_UUID, partition.log.partition.topic_id):
        return _Outcome(number, ErrorCode.INCONSISTENT_TOPIC_ID)
    try:
        slot = broker.coordinators.markers.write(partition, ended)
    except PartitionError as error:
        # The refusal may rest on appends that are not durable yet.
        return _Outcome(number, error.code, broker.wal.newest_slot)
    except TidelogError as error:
        logger.warning("a marker was not written", extra={"why": str(error)})
        return _Outcome(number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return _Outcome(number, ErrorCode.NONE, slot)


async def _answer(
    broker: TransactionServices,
    request: WriteTxnMarkersRequest,
    written: Sequence[list[list[_Outcome]]],
) -> WriteTxnMarkersResponse:
    outcomes = [each for topics in written for of_topic in topics for each in of_topic]
    newest = max((each.slot for each in outcomes), default=NOTHING_WRITTEN)
    is_lost = False
    if newest != NOTHING_WRITTEN:
        try:
            await broker.wal.durable(newest)
        except TidelogError as error:
            logger.warning("it is unknown whether markers are durable", extra={"why": str(error)})
            is_lost = True
    if any(each.code in _OF_THE_VIEW for each in outcomes):
        # The coordinator may know more than this broker. It sends the marker again.
        await broker.renewal.renewed(even_if_alone=True)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[_partition_result(each, is_lost) for each in of_topic],
                    )
                    for topic, of_topic in zip(marker.topics, topics, strict=True)
                ],
            )
            for marker, topics in zip(request.markers, written, strict=True)
        ]
    )


def _partition_result(outcome: _Outcome, is_lost: bool) -> WritableTxnMarkerPartitionResult:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_lost else outcome.code
    return WritableTxnMarkerPartitionResult(partition_index=outcome.partition, error_code=code)
