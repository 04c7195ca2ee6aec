"""WriteTxnMarkers (27): ends transactions in partitions that this broker leads.

The coordinators of other brokers send it, and tools that end transactions unknown to any
coordinator (KIP-664). Answered when the markers are durable.
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
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

logger = logging.getLogger(__name__)

NOTHING_WRITTEN = Slot(-1)


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
        transaction_version=marker.transaction_version,
    )
    return [
        [_write_one(broker, ended, topic.name, number) for number in topic.partition_indexes]
        for topic in marker.topics
    ]


def _write_one(
    broker: TransactionServices, ended: EndedTransaction, topic: str, number: int
) -> _Outcome:
    try:
        partition = broker.partitions.named(topic, number)
        slot = broker.coordinators.markers.write(partition, ended)
    except PartitionError as error:
        return _Outcome(number, error.code)
    except TidelogError as error:
        logger.warning("a marker was not written", extra={"why": str(error)})
        return _Outcome(number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return _Outcome(number, ErrorCode.NONE, slot)


async def _answer(
    broker: TransactionServices,
    request: WriteTxnMarkersRequest,
    written: Sequence[list[list[_Outcome]]],
) -> WriteTxnMarkersResponse:
    slots = (each.slot for topics in written for outcomes in topics for each in outcomes)
    newest = max(slots, default=NOTHING_WRITTEN)
    is_lost = False
    if newest != NOTHING_WRITTEN:
        try:
            await broker.wal.durable(newest)
        except TidelogError as error:
            logger.warning("it is unknown whether markers are durable", extra={"why": str(error)})
            is_lost = True
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[_partition_result(each, is_lost) for each in outcomes],
                    )
                    for topic, outcomes in zip(marker.topics, topics, strict=True)
                ],
            )
            for marker, topics in zip(request.markers, written, strict=True)
        ]
    )


def _partition_result(outcome: _Outcome, is_lost: bool) -> WritableTxnMarkerPartitionResult:
    lost = is_lost and outcome.code is ErrorCode.NONE
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if lost else outcome.code
    return WritableTxnMarkerPartitionResult(partition_index=outcome.partition, error_code=code)
