"""A transactional producer whose cluster answers by a script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tests.unit.client.scripted_broker import Answer
from tests.unit.client.scripted_cluster import ScriptedCluster
from tests.unit.client.simulated import World, play
from tidelog.client.pool import Client
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.coordinators import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.records.batch import BatchHeader

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
OK = ErrorCode.NONE
NO_ANSWER = None
PID = 7
Script = dict[type, list[ErrorCode | None]]


class Brokers:
    """A cluster whose first broker coordinates. `script` lists, by type of request, the next errors
    or missing answers; the requests after these succeed."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.script: Script = defaultdict(list)
        self.epoch = 0
        self.own_epochs = False
        self.batches: list[BatchHeader] = []
        self.told: list[Any] = []
        for broker in cluster.brokers.values():
            broker.on(FindCoordinatorRequest, self._found)
            broker.on(ProduceRequest, self._produced)
        self.coordinator = cluster.brokers[0]
        answers: dict[type, Callable[[Any, int], Answer]] = {
            InitProducerIdRequest: self._initialised,
            AddPartitionsToTxnRequest: self._added,
            AddOffsetsToTxnRequest: lambda _, code: AddOffsetsToTxnResponse(error_code=code),
            TxnOffsetCommitRequest: self._committed,
            EndTxnRequest: self._ended,
        }
        for kind, answer in answers.items():
            self.coordinator.on(kind, partial(self._answer, answer))

    def sent(self) -> list[str]:
        """The kinds of requests about transactions, in order."""
        return [type(each).__name__.removesuffix("Request") for each in self.told]

    def ends(self) -> list[bool]:
        """The requested ends: commit or abort."""
        return [each.committed for each in self.told if isinstance(each, EndTxnRequest)]

    def _answer(self, answer: Callable[[Any, int], Answer], request: Any) -> Answer:
        self.told.append(request)
        errors = self.script[type(request)]
        code = errors.pop(0) if errors else OK
        return None if code is NO_ANSWER else answer(request, code)

    def _found(self, request: FindCoordinatorRequest) -> Answer:
        host, port = self.coordinator.address
        (key,) = request.coordinator_keys
        found = Coordinator(key=key, node_id=0, host=host, port=port)
        return FindCoordinatorResponse(coordinators=[found])

    def _initialised(self, request: InitProducerIdRequest, code: int) -> Answer:
        if code:
            return InitProducerIdResponse(error_code=code)
        self.epoch += request.producer_epoch >= 0
        return InitProducerIdResponse(producer_id=PID, producer_epoch=self.epoch)

    def _added(self, request: AddPartitionsToTxnRequest, code: int) -> Answer:
        topics = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _committed(self, request: TxnOffsetCommitRequest, code: int) -> Answer:
        topics = [
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return TxnOffsetCommitResponse(topics=topics)

    def _ended(self, request: EndTxnRequest, code: int) -> Answer:
        if code or not self.own_epochs:
            return EndTxnResponse(error_code=code)
        self.epoch += 1
        return EndTxnResponse(producer_id=PID, producer_epoch=self.epoch)

    def _produced(self, request: ProduceRequest) -> Answer:
        self.told.append(request)
        errors = self.script[ProduceRequest]
        code = errors.pop(0) if errors else OK
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        assert partition.records is not None
        self.batches.append(BatchHeader.parse(bytes(partition.records)))
        result = PartitionProduceResponse(
            index=partition.index, error_code=code or OK, base_offset=-1 if code else 40
        )
        response = ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=[result]
                )
            ]
        )
        return None if code is NO_ANSWER else response


Story = Callable[[Brokers, TransactionalProducer], Awaitable[None]]


def tell(story: Story, version: TransactionVersion = V1, *, initialised: bool = True) -> None:
    """Play a story of one producer."""

    async def main(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        brokers = Brokers(cluster)
        brokers.own_epochs = version is V2
        async with world.client(cluster.brokers[0].address) as client:
            producer = new_producer(world, client, version)
            if initialised:
                await producer.init_transactions()
                brokers.told.clear()
            await story(brokers, producer)

    play(main)


def new_producer(
    world: World, client: Client, version: TransactionVersion
) -> TransactionalProducer:
    settings = TransactionalProducerSettings(
        version=version, delivery_timeout_ms=50_000, api_timeout_ms=50_000
    )
    return TransactionalProducer(client, world.process.clock, SeededEntropy(1), "txn", settings)
