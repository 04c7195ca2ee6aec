"""The calls of a transactional producer to coordinators and leaders.

Each call sends one request in the protocol's version, and raises its errors. Calls do not retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from tidelog.client.errors import RequestRefused, check
from tidelog.client.groups.admin import Place
from tidelog.client.operations import ProducerIdentity, init_producer_id
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.client.transactions import requests as requests
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.own.adopt import AdoptPartition, AdoptRequest, AdoptTopic
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import EndTxnResponse, TxnOffsetCommitRequest
from tidelog.protocol.wire import Buffer

R = TypeVar("R", bound=Response)

ACKS_ALL = -1
NO_OFFSET = -1
FEATURE = "transaction.version"
"""The cluster feature whose level selects the version of the transaction protocol."""


class TransactionCalls:
    """The calls of one transactional id. Each raises RequestRefused or RequestFailed."""

    def __init__(self, client: Client, transactional_id: str, timeout_ms: int) -> None:
        """`timeout_ms`: the time after which the coordinator aborts a transaction."""
        self._client = client
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.version = TransactionVersion.V1

    async def newest_version(self) -> TransactionVersion:
        """The version of the transaction protocol that the cluster has enabled."""
        connection = await self._client.any_connection()
        for feature in connection.api_versions.finalized_features:
            if feature.name == FEATURE and feature.max_version_level >= TransactionVersion.V2:
                return TransactionVersion.V2
        return TransactionVersion.V1

    async def init_producer_id(self, current: ProducerIdentity | None) -> ProducerIdentity:
        """Take the transactional id over, or get the next epoch of `current`."""
        return await init_producer_id(
            self._client,
            self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            current=current,
        )

    async def enlist(self, identity: ProducerIdentity, place: Place) -> None:
        """Add a partition to the transaction."""
        request = requests.enlist_partition(self._transactional_id, identity, place)
        response = await self._ask(request, requests.ENLIST_VERSION_MAX)
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                check(f"enlisting {place}", result.partition_error_code)

    async def enlist_group(self, identity: ProducerIdentity, group_id: str) -> None:
        """Add a group's offsets to the transaction."""
        request = requests.enlist_group(self._transactional_id, identity, group_id)
        response = await self._ask(request)
        check(f"enlisting the offsets of group {group_id}", response.error_code)

    async def produce(self, place: Place, batch: Buffer) -> int:
        """Append a batch; returns its offset.

        The offset is -1 if an earlier attempt appended the batch at an unknown offset.
        """
        topic = await self._client.topic(place.topic)
        data = PartitionProduceData(index=place.partition, records=batch)
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ACKS_ALL,
            timeout_ms=self._client.settings.request_timeout_ms,
            topic_data=[
                TopicProduceData(name=place.topic, topic_id=topic.topic_id, partition_data=[data])
            ],
        )
        response: ProduceResponse = await self._client.request_to_leader(
            *place, request, version_max=requests.PRODUCE_VERSION_MAX[self.version]
        )
        for result in (p for t in response.responses for p in t.partition_responses):
            code = result.error_code
            if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return NO_OFFSET
            if code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
                # The partition may have moved to another leader.
                self._client.forget(place.topic)
            check(f"produce to {place}", code, result.error_message)
            return result.base_offset
        raise RequestRefused(f"produce to {place}", ErrorCode.UNKNOWN_SERVER_ERROR)

    async def adopt(
        self, identity: ProducerIdentity, place: Place, staged_ids: Sequence[UUID]
    ) -> int:
        """Let a partition adopt staged batches; returns the number of added records."""
        topic = await self._client.topic(place.topic)
        asked = AdoptPartition(partition_index=place.partition, staged_ids=list(staged_ids))
        request = AdoptRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=[AdoptTopic(topic_id=topic.topic_id, partitions=[asked])],
        )
        response = await self._client.request_to_leader(*place, request)
        for result in (p for t in response.topics for p in t.partitions):
            code = result.error_code
            if code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
                self._client.forget(place.topic)
            check(f"adopt in {place}", code, result.error_message)
            return result.record_count
        raise RequestRefused(f"adopt in {place}", ErrorCode.UNKNOWN_SERVER_ERROR)

    async def commit_offsets(self, request: TxnOffsetCommitRequest) -> None:
        """Store a group's offsets, to take effect when the transaction commits."""
        group_id = request.group_id
        response = await self._client.request_to_coordinator(
            CoordinatorKind.GROUP,
            group_id,
            request,
            version_max=requests.OFFSETS_VERSION_MAX[self.version],
        )
        for topic in response.topics:
            for partition in topic.partitions:
                subject = f"offset of group {group_id} in {topic.name}-{partition.partition_index}"
                check(subject, partition.error_code)

    async def end(self, identity: ProducerIdentity, *, committed: bool) -> EndTxnResponse:
        """Commit or abort the transaction; the caller checks the response's error."""
        request = requests.end_transaction(self._transactional_id, identity, committed=committed)
        return await self._ask(request, requests.END_VERSION_MAX[self.version])

    async def _ask(self, request: Request[R], version_max: int | None = None) -> R:
        return await self._client.request_to_coordinator(
            CoordinatorKind.TRANSACTION, self._transactional_id, request, version_max=version_max
        )
