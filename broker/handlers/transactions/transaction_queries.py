"""DescribeProducers (61), DescribeTransactions (65) and ListTransactions (66): the ongoing
transactions, for operators who search for hanging ones (KIP-664).

Answers contain only durable state, and are given while the lease is fresh (B3, H5).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import TransactionServices
from tidelog.broker.handlers.transactions.transactions import submit
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.coordinator.patterns import InvalidPattern, check_length
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.coordinator.transaction.commands import (
    DescribeTransaction,
    DescribeTransactionReply,
    ListTransactions,
    ListTransactionsReply,
    Reply,
    TransactionListing,
)
from tidelog.coordinator.transaction.listing import chosen
from tidelog.coordinator.transaction.states import STATES_BY_LABEL
from tidelog.coordinator.transaction.transaction import Transaction
from tidelog.errors import TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.made_list import made_list
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.transaction_listing import (
    DescribedProducer,
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeProducersTopicResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

logger = logging.getLogger(__name__)


async def describe_producers(
    broker: TransactionServices, request: DescribeProducersRequest, context: RequestContext
) -> Response | None:
    """The producers that partitions know, with the starts of open transactions."""
    topics = [_producers_of(broker, each) for each in request.topics]
    # The producers' batches may be appended and not durable yet.
    refusal = None
    try:
        await broker.wal.durable(broker.wal.newest_slot)
    except TidelogError as error:
        logger.warning("the state of producers may be lost", extra={"why": str(error)})
        refusal = "the broker's log has ended"
    if not broker.may_serve_reads():
        refusal = "the broker's lease is not fresh"
    if refusal is not None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return error_response(request, context.api_version, code, refusal)
    return DescribeProducersResponse(topics=topics)


def _producers_of(
    broker: TransactionServices, asked: DescribeProducersTopic
) -> DescribeProducersTopicResponse:
    return DescribeProducersTopicResponse(
        name=asked.name,
        partitions=[_producers_in(broker, asked.name, each) for each in asked.partition_indexes],
    )


def _producers_in(
    broker: TransactionServices, topic: str, number: int
) -> DescribeProducersPartitionResponse:
    try:
        log = broker.partitions.named(topic, number).log
    except PartitionError as error:
        return DescribeProducersPartitionResponse(
            partition_index=number, error_code=error.code, error_message=str(error)
        )
    return DescribeProducersPartitionResponse(
        partition_index=number,
        active_producers=[
            DescribedProducer(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_first_offset,
            )
            for each in log.producers
        ],
    )


async def describe_transactions(
    broker: TransactionServices, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """The newest transaction of each transactional id, by its coordinator."""
    asked = [
        (each, submit(broker, each, DescribeTransaction(each)))
        for each in dict.fromkeys(request.transactional_ids)
    ]
    return DescribeTransactionsResponse(
        transaction_states=[await _described(each, reply) for each, reply in asked]
    )


async def _described(transactional_id: str, asked: Awaitable[Reply]) -> DescribedTransaction:
    try:
        reply = await asked
    except CoordinatorRefused as error:
        return DescribedTransaction(transactional_id=transactional_id, error_code=error.code)
    assert isinstance(reply, DescribeTransactionReply)
    if reply.transaction is None:
        return DescribedTransaction(transactional_id=transactional_id, error_code=reply.error)
    found = reply.transaction
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.begun_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=_enlisted_topics(found),
    )


def _enlisted_topics(transaction: Transaction) -> list[DescribedTransactionTopic]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return [
        DescribedTransactionTopic(topic=topic, partitions=partitions)
        for topic, partitions in topics.items()
    ]


async def list_transactions(
    broker: TransactionServices, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """The transactional ids that this broker coordinates, filtered."""
    known = [each for each in request.state_filters if each in STATES_BY_LABEL]
    unknown = [each for each in request.state_filters if each not in STATES_BY_LABEL]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    if unknown and not known:
        return response
    command = ListTransactions(
        states=frozenset(STATES_BY_LABEL[each] for each in known),
        producer_ids=frozenset(request.producer_id_filters),
        duration_ms=request.duration_filter,
    )
    try:
        found = await _listed(broker, command, request.transactional_id_pattern or "")
        if not broker.may_serve_reads():
            raise CoordinatorRefused(ErrorCode.NOT_COORDINATOR, "the broker's lease is not fresh")
    except InvalidPattern:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    except CoordinatorRefused as error:
        # Kafka's answer during a load: the client asks again. Kafka has no partial listings.
        is_moving = error.code is ErrorCode.NOT_COORDINATOR
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_moving else error.code
        return response
    response.transaction_states = made_list(found, _listing)
    return response


def _listing(found: TransactionListing) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        transaction_state=found.state.label,
    )


async def _listed(
    broker: TransactionServices, command: ListTransactions, pattern: str
) -> list[TransactionListing]:
    """The matching listings. Raises InvalidPattern or CoordinatorRefused."""
    check_length(pattern, broker.settings.integer("regex.length.max"))
    coordinators = broker.coordinators
    patterns = coordinators.group_work.patterns
    found: list[TransactionListing] = []
    for coordinator in coordinators.transactions.all():
        reply = await coordinator.submit(command)
        assert isinstance(reply, ListTransactionsReply)
        found += await coordinators.background.run(chosen, reply)
    if pattern:
        ids = [each.transactional_id for each in found]
        wanted = frozenset(await patterns.matching(pattern, ids))
        found = [each for each in found if each.transactional_id in wanted]
    return found
