"""A producer's identity and its transactions: InitProducerId (22), AddPartitionsToTxn (24),
AddOffsetsToTxn (25) and EndTxn (26).

Commands take effect at once, in the order of a connection's requests. The answer follows when the
coordinator may give it (rule H2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.broker.handlers.internal_topics import create_internal_topic
from tidelog.broker.handlers.metadata_change import ChangeFailed
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import TransactionServices
from tidelog.coordinator.cluster.membership.assignment import NoLiveBroker
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    AddReply,
    Command,
    EndTransaction,
    FreshIdNeeded,
    Identity,
    IdentityReply,
    InitProducer,
    Release,
    Reply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.transaction import (
    OWN_EPOCHS_FROM,
    EnlistedPartition,
)
from tidelog.coordinator.transaction.wire_errors import error_for
from tidelog.errors import TidelogError
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import (
    NO_ORDINAL,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.wire import NULL_UUID
from tidelog.records.batch import NO_PRODUCER_EPOCH

logger = logging.getLogger(__name__)

SECOND_VERSION_FROM: Final = 5
"""EndTxn of transactions of the second version (KIP-890, part 2)."""
TRANSACTIONS_FROM: Final = 4
"""The AddPartitionsToTxn that brokers send for several producers."""


def submit(
    broker: TransactionServices, transactional_id: str, command: Command
) -> Awaitable[Reply]:
    """Submit a command to a transactional id's coordinator.

    The awaitable raises CoordinatorRefused.
    """
    try:
        return broker.coordinators.transactions.find(transactional_id).submit(command)
    except CoordinatorRefused as error:
        refused: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        refused.set_exception(error)
        # Never awaited if the request is given up before: retrieve the error.
        refused.exception()
        return refused


# InitProducerId.


async def init_producer_id(
    broker: TransactionServices, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """A producer's identity.

    Without a transactional id it is a fresh producer id at epoch 0, whatever the producer had
    before. With one, it fences the previous producer (KIP-360).
    """
    if request.transactional_id is None:
        reply = await _fresh_identity(broker, request)
    else:
        transactions = broker.coordinators.transactions
        transactions.note_use(request.transactional_id, context.client_id)
        identity = _identity(request.producer_id, request.producer_epoch)
        reply = await _identity_from(
            broker,
            request.transactional_id,
            lambda fresh_id: InitProducer(
                transactional_id=request.transactional_id or "",
                timeout_ms=request.transaction_timeout_ms,
                identity=identity,
                fresh_id=fresh_id,
            ),
        )
    code = error_for(ApiKey.INIT_PRODUCER_ID, context.api_version, reply.error)
    if code is not ErrorCode.NONE:
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.epoch)


async def _fresh_identity(
    broker: TransactionServices, request: InitProducerIdRequest
) -> IdentityReply:
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return IdentityReply(ErrorCode.INVALID_REQUEST)
    fresh_id = await _fresh_id(broker)
    if fresh_id is None:
        return IdentityReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return IdentityReply(ErrorCode.NONE, fresh_id, ProducerEpoch(0))


async def _fresh_id(broker: TransactionServices) -> ProducerId | None:
    """A producer id that was never used; None if none is available now.

    As in Kafka, producers are then told to retry: other errors are final to them.
    """
    try:
        return await broker.producer_ids.next()
    except TidelogError as error:
        logger.warning("no producer id is available", extra={"why": str(error)})
        return None


async def _identity_from(
    broker: TransactionServices,
    transactional_id: str,
    command: Callable[[ProducerId | None], Command],
) -> IdentityReply:
    """Request an identity; a second time with a fresh producer id if one is needed."""
    try:
        reply = await submit(broker, transactional_id, command(None))
        if isinstance(reply, FreshIdNeeded):
            fresh_id = await _fresh_id(broker)
            if fresh_id is None:
                return IdentityReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            reply = await submit(broker, transactional_id, command(fresh_id))
    except CoordinatorRefused as error:
        return IdentityReply(error.code)
    assert isinstance(reply, IdentityReply)
    return reply


def _identity(producer_id: int, epoch: int) -> Identity:
    return Identity(ProducerId(producer_id), ProducerEpoch(epoch))


# Enlisting.


def add_partitions_to_txn(
    broker: TransactionServices, request: AddPartitionsToTxnRequest, context: RequestContext
) -> Awaitable[AddPartitionsToTxnResponse]:
    """Enlist partitions; from version 4 on (used by brokers) also verify them."""
    version = context.api_version
    if version >= TRANSACTIONS_FROM:
        asked = [_enlist(broker, each, OWN_EPOCHS_FROM) for each in request.transactions]
        return _enlisted_of_many(broker, request.transactions, asked)
    only = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return _enlisted_of_one(only, _enlist(broker, only, 0), version)


class _Enlisted(NamedTuple):
    """The coordinator's answer: each partition's code, and the transaction's ordinal (H1)."""

    codes: Mapping[EnlistedPartition, ErrorCode]
    ordinal: int = NO_ORDINAL


def _enlist(
    broker: TransactionServices, transaction: AddPartitionsToTxnTransaction, client_version: int
) -> Awaitable[_Enlisted]:
    """Enlist now; the answer follows when the coordinator may give it."""
    partitions = frozenset(
        EnlistedPartition(topic.name, number)
        for topic in transaction.topics
        for number in topic.partitions
    )
    if _unknown(broker, transaction):
        return _enlist_later(broker, transaction, partitions, client_version)
    return _enlist_known(broker, transaction, partitions, client_version)


def _unknown(
    broker: TransactionServices, transaction: AddPartitionsToTxnTransaction
) -> set[EnlistedPartition]:
    """The partitions that this broker does not know, or knows as those of another topic.

    The markers go by the coordinator's view: it must have the topic that gets the data.
    """
    state = broker.metadata.state
    unknown = set()
    for topic in transaction.topics:
        found = state.topic_named(topic.name)
        is_meant = found is not None and topic.topic_id in (NULL_UUID, found.topic_id)
        for number in topic.partitions:
            if not is_meant or not state.has_partition(topic.name, number):
                unknown.add(EnlistedPartition(topic.name, number))
    return unknown


async def _enlist_later(
    broker: TransactionServices,
    transaction: AddPartitionsToTxnTransaction,
    partitions: frozenset[EnlistedPartition],
    client_version: int,
) -> _Enlisted:
    """Enlist when the metadata log was read: another broker may have created the partitions."""
    await broker.renewal.renewed()
    unknown = _unknown(broker, transaction)
    if not unknown:
        return await _enlist_known(broker, transaction, partitions, client_version)
    return _Enlisted(
        {
            each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if each in unknown
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for each in partitions
        }
    )


def _enlist_known(
    broker: TransactionServices,
    transaction: AddPartitionsToTxnTransaction,
    partitions: frozenset[EnlistedPartition],
    client_version: int,
) -> Awaitable[_Enlisted]:
    identity = _identity(transaction.producer_id, transaction.producer_epoch)
    command: Command
    if transaction.verify_only:
        command = VerifyPartitions(
            transactional_id=transaction.transactional_id,
            identity=identity,
            partitions=partitions,
            release=Release.DURABLE,
        )
    else:
        command = AddPartitions(
            transactional_id=transaction.transactional_id,
            identity=identity,
            partitions=partitions,
            client_version=client_version,
            release=Release.DURABLE,
        )
    asked = submit(broker, transaction.transactional_id, command)
    return _enlisted(partitions, asked)


async def _enlisted(partitions: frozenset[EnlistedPartition], asked: Awaitable[Reply]) -> _Enlisted:
    try:
        reply = await asked
    except CoordinatorRefused as error:
        return _Enlisted(dict.fromkeys(partitions, error.code))
    assert isinstance(reply, AddReply | VerifyReply)
    if reply.error is not ErrorCode.NONE:
        return _Enlisted(dict.fromkeys(partitions, reply.error))
    missing = reply.missing if isinstance(reply, VerifyReply) else frozenset()
    codes = dict.fromkeys(partitions, ErrorCode.NONE)
    codes |= dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE)
    return _Enlisted(codes, reply.ordinal)


async def _enlisted_of_many(
    broker: TransactionServices,
    transactions: Sequence[AddPartitionsToTxnTransaction],
    asked: Sequence[Awaitable[_Enlisted]],
) -> AddPartitionsToTxnResponse:
    version = TRANSACTIONS_FROM
    enlisted = await asyncio.gather(*asked)
    if any(ErrorCode.NOT_COORDINATOR in each.codes.values() for each in enlisted):
        # The asking broker may know of a move that this one has not read. It asks again.
        await broker.renewal.renewed(even_if_alone=True)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_topic_results(transaction.topics, each.codes, version),
                ordinal=each.ordinal,
            )
            for transaction, each in zip(transactions, enlisted, strict=True)
        ]
    )


async def _enlisted_of_one(
    transaction: AddPartitionsToTxnTransaction, asked: Awaitable[_Enlisted], version: int
) -> AddPartitionsToTxnResponse:
    results = _topic_results(transaction.topics, (await asked).codes, version)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _topic_results(
    topics: Sequence[AddPartitionsToTxnTopic],
    codes: Mapping[EnlistedPartition, ErrorCode],
    version: int,
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number,
                    partition_error_code=error_for(
                        ApiKey.ADD_PARTITIONS_TO_TXN,
                        version,
                        codes[EnlistedPartition(topic.name, number)],
                    ),
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


async def add_offsets_to_txn(
    broker: TransactionServices, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """Enlist the partition of a group's offsets."""
    reply = await _add_offsets(broker, request)
    code = error_for(ApiKey.ADD_OFFSETS_TO_TXN, context.api_version, reply.error)
    return AddOffsetsToTxnResponse(error_code=code)


async def _add_offsets(broker: TransactionServices, request: AddOffsetsToTxnRequest) -> AddReply:
    if not request.group_id:
        return AddReply(ErrorCode.INVALID_GROUP_ID)
    try:
        await create_internal_topic(broker, GROUP_TOPIC)
    except (ChangeFailed, NoLiveBroker) as error:
        logger.warning("the topic of groups' offsets is missing", extra={"why": str(error)})
        return AddReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    topic = broker.metadata.state.topic_named(GROUP_TOPIC)
    assert topic is not None
    number = partition_for(request.group_id, topic.partition_count)
    command = AddPartitions(
        transactional_id=request.transactional_id,
        identity=_identity(request.producer_id, request.producer_epoch),
        partitions=frozenset({EnlistedPartition(GROUP_TOPIC, number)}),
        client_version=0,
        release=Release.DURABLE,
    )
    try:
        reply = await submit(broker, request.transactional_id, command)
    except CoordinatorRefused as error:
        return AddReply(error.code)
    assert isinstance(reply, AddReply)
    return reply


# Ending.


async def end_txn(
    broker: TransactionServices, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse:
    """Commit or abort: answered when the decision is durable (rule H2)."""
    broker.coordinators.transactions.note_use(request.transactional_id, context.client_id)
    version = context.api_version
    is_second = version >= SECOND_VERSION_FROM
    reply = await _identity_from(
        broker,
        request.transactional_id,
        lambda fresh_id: EndTransaction(
            transactional_id=request.transactional_id,
            identity=_identity(request.producer_id, request.producer_epoch),
            commit=request.committed,
            client_version=OWN_EPOCHS_FROM if is_second else 0,
            fresh_id=fresh_id,
        ),
    )
    code = error_for(ApiKey.END_TXN, version, reply.error)
    if not is_second or code is not ErrorCode.NONE:
        return EndTxnResponse(error_code=code)
    return EndTxnResponse(producer_id=reply.producer_id, producer_epoch=reply.epoch)
