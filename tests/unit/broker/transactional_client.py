"""A transactional producer that asks one broker's handlers, with encoding and decoding, under the
first version of transactions or the second (KIP-890)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tests.unit.broker.one_broker import TOPIC, OneBroker, produce_request, services_of
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.handlers.groups.coordinator import find_coordinator
from tidelog.broker.handlers.groups.group_offsets import offset_fetch
from tidelog.broker.handlers.transactions.transactional_offsets import txn_offset_commit
from tidelog.broker.handlers.transactions.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)
from tidelog.coordinator.runtime import CoordinatorRuntime, RuntimeState
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.protocol.schemas.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.records.batch import iterate_batches
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_batch, encode_batch

R = TypeVar("R", bound=Response)
FIRST, SECOND = 1, 2
GROUP = "g"


async def ask(broker: OneBroker, handler: Any, request: Request[R], version: int) -> R:
    """Ask as a client of that version does: request and answer are encoded and decoded."""
    sent = b"".join(map(bytes, encode(request, version)))
    received = decode(type(request), sent, version)
    response = await handler(services_of(broker.broker, handler), received, broker.context(version))
    return decode(type(response), b"".join(map(bytes, encode(response, version))), version)


async def find(broker: OneBroker, key: str, key_type: int) -> ErrorCode:
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    response = await ask(broker, find_coordinator, request, 4)
    return ErrorCode(response.coordinators[0].error_code)


async def loaded(broker: OneBroker) -> None:
    """Wait until every coordinator has read its log."""
    coordinators = broker.broker.coordination.coordinators
    runtimes: list[CoordinatorRuntime[Any, Any, Any]] = [
        *coordinators.groups.all(),
        *coordinators.transactions.all(),
    ]
    for runtime in runtimes:
        while runtime.state is RuntimeState.LOADING:
            await broker.broker.environment.clock.sleep(0.001)


class TransactionalClient:
    """One producer, at the broker that each call names. Its methods return error codes."""

    def __init__(self, broker: OneBroker, transactional_id: str = "t", version: int = SECOND):
        self.broker = broker
        self.transactional_id = transactional_id
        self.version = version
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self, timeout_ms: int = 60_000, *, goes_on: bool = False) -> ErrorCode:
        """Take the transactional id over, or continue with the own identity (KIP-360)."""
        await find(self.broker, self.transactional_id, 1)
        while True:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms
            )
            if goes_on:
                request.producer_id, request.producer_epoch = self.producer_id, self.epoch
            response = await ask(self.broker, init_producer_id, request, 4)
            if response.error_code not in (
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ):
                break
            await self.broker.broker.environment.clock.sleep(0.001)
        if response.error_code == ErrorCode.NONE:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return ErrorCode(response.error_code)

    async def add(self, *partitions: int, topic: str = TOPIC, version: int = 3) -> ErrorCode:
        """AddPartitionsToTxn."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        response = await ask(self.broker, add_partitions_to_txn, request, version)
        results = response.results_by_topic_v3_and_below[0].results_by_partition
        return ErrorCode(results[0].partition_error_code)

    async def send(
        self, value: bytes, partition: int = 0, *, topic: str = TOPIC, adds: bool = True
    ) -> ErrorCode:
        """Produce one record in the transaction. Under the first version, enlist the partition
        first."""
        records = [NewRecord(value, b"k", timestamp=1000)]
        return await self.send_batch(records, partition, topic=topic, adds=adds)

    async def send_batch(
        self,
        records: Sequence[NewRecord],
        partition: int = 0,
        *,
        topic: str = TOPIC,
        adds: bool = True,
        compression: Compression = Compression.NONE,
    ) -> ErrorCode:
        """Produce several records in one batch, as `send` does for one record."""
        if self.version == FIRST and adds:
            error = await self.add(partition, topic=topic)
            if error is not ErrorCode.NONE:
                return error
        sequence = self.sequences.get((topic, partition), 0)
        data = encode_batch(
            records,
            compression=compression,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = produce_request(topic, partition, data, -1, 5000)
        request.transactional_id = self.transactional_id
        # From version 13 on topics have ids only; the data path is the same.
        version = 12 if self.version == SECOND else 11
        response = await ask(self.broker, produce, request, version)
        error = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if error is ErrorCode.NONE:
            self.sequences[(topic, partition)] = sequence + len(records)
        return error

    async def add_group(self) -> ErrorCode:
        """AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=GROUP,
        )
        return ErrorCode((await ask(self.broker, add_offsets_to_txn, request, 3)).error_code)

    async def commit_offset(
        self, offset: int, *, topic: str = TOPIC, adds: bool = True
    ) -> ErrorCode:
        """Commit the group's offset of partition 0 with the transaction."""
        if self.version == FIRST and adds:
            error = await self.add_group()
            if error is not ErrorCode.NONE:
                return error
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=GROUP,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        version = 5 if self.version == SECOND else 4
        response = await ask(self.broker, txn_offset_commit, request, version)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def end(self, *, commit: bool) -> ErrorCode:
        """Commit or abort."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        response = await ask(self.broker, end_txn, request, 5 if self.version == SECOND else 3)
        if response.error_code == ErrorCode.NONE and self.version == SECOND:
            if response.producer_epoch != self.epoch:
                self.sequences.clear()
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return ErrorCode(response.error_code)

    async def commit(self) -> ErrorCode:
        """Commit."""
        return await self.end(commit=True)

    async def abort(self) -> ErrorCode:
        """Abort."""
        return await self.end(commit=False)


async def committed_offset(broker: OneBroker, *, stable: bool = True) -> int:
    """The group's committed offset of partition 0, or its negative error."""
    topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])], require_stable=stable
    )
    response = await ask(broker, offset_fetch, request, 8)
    group = response.groups[0]
    if group.error_code:
        return -int(group.error_code)
    found = group.topics[0].partitions[0]
    return -int(found.error_code) if found.error_code else found.committed_offset


async def read(broker: OneBroker, partition: int = 0, *, committed: bool = True) -> list[bytes]:
    """The records that a consumer sees. Under read_committed it drops aborted ones, as Kafka's
    clients do."""
    offset, values, aborting = 0, [], set[int]()
    while True:
        answer = await broker.fetch(offset, partition, committed=committed)
        assert answer.error_code == 0, answer
        data = b"".join(answer.records or ())
        if not data:
            return values
        aborted = sorted(
            (each.first_offset, each.producer_id) for each in answer.aborted_transactions or ()
        )
        for position, header in iterate_batches(data):
            offset = header.last_offset + 1
            while aborted and aborted[0][0] <= header.last_offset:
                aborting.add(aborted.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (committed and header.is_transactional and header.producer_id in aborting):
                values += [each.value or b"" for each in decode_batch(data, position, header)]
