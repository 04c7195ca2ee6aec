"""Two scripted brokers that agree on the leaders, with one log of batches a partition."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from tests.unit.client.scripted_broker import ScriptedBroker
from tests.unit.client.simulated import World
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.schemas.fetch import (
    AbortedTransaction,
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

FLIGHTS = UUID(int=77)


class ScriptedCluster:
    """Brokers by id. `leaders` maps a topic to the leader of each partition, or -1 for none."""

    def __init__(self, brokers: dict[int, ScriptedBroker]) -> None:
        self.brokers = brokers
        self.leaders: dict[str, list[int]] = {"flights": [0, 1, -1]}
        self.logs: dict[int, list[bytes]] = defaultdict(list)
        for number, broker in brokers.items():
            self.serve(number, broker)

    @classmethod
    async def start(cls, world: World) -> ScriptedCluster:
        """Brokers 0 and 1."""
        return cls({number: await world.broker(f"host-{number}") for number in (0, 1)})

    def serve(self, number: int, broker: ScriptedBroker) -> None:
        """Let a broker answer for the cluster."""
        self.brokers[number] = broker
        broker.on(MetadataRequest, self._metadata)
        broker.on(ProduceRequest, lambda request: self._produce(number, request))
        broker.on(FetchRequest, lambda request: self.fetched(number, request))
        broker.on(ListOffsetsRequest, lambda request: self._list_offsets(number, request))

    def seen(self, request: type) -> dict[int, int]:
        """How many requests of a type each broker saw."""
        return {number: len(broker.seen(request)) for number, broker in self.brokers.items()}

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        wanted = request.topics
        names = list(self.leaders) if wanted is None else [topic.name or "" for topic in wanted]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=n, host=b.address[0], port=b.address[1])
                for n, b in self.brokers.items()
            ],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.leaders:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return MetadataResponseTopic(name=name, error_code=code)
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=leader,
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else 0,
                replica_nodes=[leader],
            )
            for index, leader in enumerate(self.leaders[name])
        ]
        return MetadataResponseTopic(name=name, topic_id=FLIGHTS, partitions=partitions)

    def _code(self, number: int, partition: int) -> int:
        leaders = self.leaders["flights"]
        return 0 if leaders[partition] == number else int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _produce(self, number: int, request: ProduceRequest) -> ProduceResponse | None:
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        code = self._code(number, partition.index)
        result = PartitionProduceResponse(index=partition.index, error_code=code)
        if code == 0:
            assert partition.records is not None
            result.base_offset = len(self.logs[partition.index])
            self.logs[partition.index].append(bytes(partition.records))
        if request.acks == 0:
            return None
        return ProduceResponse(
            responses=[TopicProduceResponse(name=topic.name, partition_responses=[result])]
        )

    def fetched(self, number: int, request: FetchRequest) -> FetchResponse:
        """The answer of broker `number` to a fetch."""
        (topic,) = request.topics
        assert topic.topic_id == FLIGHTS
        (partition,) = topic.partitions
        log = self.logs[partition.partition]
        code = self._code(number, partition.partition)
        if code == 0 and partition.fetch_offset > len(log):
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        result = FetchablePartitionResponse(
            partition_index=partition.partition,
            error_code=code,
            high_watermark=len(log),
            last_stable_offset=len(log) - 1,
            log_start_offset=0,
            aborted_transactions=[AbortedTransaction(producer_id=5, first_offset=0)]
            if request.isolation_level
            else None,
            records=b"".join(log[partition.fetch_offset :]),
        )
        return FetchResponse(
            responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[result])]
        )

    def _list_offsets(self, number: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        (topic,) = request.topics
        (partition,) = topic.partitions
        ends = {-1: len(self.logs[partition.partition_index]), -2: 0}
        result = ListOffsetsPartitionResponse(
            partition_index=partition.partition_index,
            error_code=self._code(number, partition.partition_index),
            offset=ends.get(partition.timestamp, -1),
            leader_epoch=3,
        )
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[result])]
        )
