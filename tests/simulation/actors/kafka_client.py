"""A workload's client of Tidelog: single requests over tidelog.client's connections."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from tests.simulation.actors.log_client import Fetched, NoAnswer, OutgoingBatch, RequestRefused
from tests.simulation.cluster import Environment
from tests.simulation.rules.history import Isolation, Key, StoredBatch
from tests.simulation.values import new_record, value_of
from tidelog.client import errors
from tidelog.client.committed import visible_batches
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import Address, BrokerConnection, R
from tidelog.protocol.error_codes import ErrorCode, error_name
from tidelog.protocol.frames import new_scratch
from tidelog.protocol.message import Request
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import InitProducerIdRequest
from tidelog.records.batch import BatchHeader, iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression
from tidelog.records.control import MarkerType, parse_marker
from tidelog.records.records import Record, decode_batch, encode_batch

_EARLIEST = -2
_LATEST = -1
_REQUEST_TIMEOUT_MS = 8000
_WRITTEN_SECONDS = 0.0001
SETTINGS = ClientSettings(
    client_id="simulation", connect_timeout_ms=5000, request_timeout_ms=_REQUEST_TIMEOUT_MS
)
_STALE = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
     ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
     ErrorCode.LEADER_NOT_AVAILABLE}
)  # fmt: skip
"""Errors after which a client looks up the leaders again."""
_ISOLATIONS: dict[Isolation, int] = {"read_uncommitted": 0, "read_committed": 1}
_PRODUCE_VERSIONS = (9, 11)
_FETCH_VERSIONS = (11, 12, 13, 17)


class KafkaLogClient:
    """See LogClient. Fetches have separate connections, since they wait."""

    def __init__(
        self,
        environment: Environment,
        bootstrap: Callable[[], list[Address]],
        inspect: Callable[[Buffer, list[Record]], None] | None = None,
    ) -> None:
        """`inspect` looks at the bytes and the records of each partition that a fetch returns."""
        self._network = environment.network
        self._clock = environment.process.clock
        self._random = random.Random(f"client {environment.process.entropy.uuid()}")
        self._bootstrap = bootstrap
        self._inspect = inspect
        self._scratch = new_scratch()
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._connecting: dict[tuple[Address, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self.offset_host = ""
        self._leaders: dict[Key, Address] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._asking = asyncio.Lock()

    async def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> bool:
        return _created(await self._ask_anyone(_create_request(topic, partitions, configs)))

    async def delete_topic(self, topic: str) -> None:
        _check_deleted(await self._ask_anyone(_delete_request(topic)))

    async def replace_topic(self, topic: str, partitions: int) -> bool:
        for address in self._shuffled_addresses():
            try:
                _check_deleted(await self._ask(address, "produce", _delete_request(topic)))
                request = _create_request(topic, partitions, {})
                return _created(await self._ask(address, "produce", request))
            except NoAnswer:
                continue
        raise NoAnswer("no broker is known")

    async def init_producer_id(self) -> tuple[int, int]:
        answer = await self._ask_anyone(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        )
        _refuse(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    async def produce(self, batch: OutgoingBatch, acks: int = -1) -> int:
        leader = await self._leader(batch.key)
        request = self._produce_request(batch, acks)
        answer = await self._ask(leader, "produce", request, self._random.choice(_PRODUCE_VERSIONS))
        return self._base_offset(batch.key, answer)

    async def produce_and_end(self, batch: OutgoingBatch) -> tuple[int, int | None]:
        key, version = batch.key, self._random.choice(_PRODUCE_VERSIONS)
        leader = await self._leader(key)
        connection = await self._connected(leader, "produce")
        request = self._produce_request(batch, -1)
        producing = asyncio.create_task(self._answered(leader, connection, request, version))
        # The batch is written by then, but cannot be durable so soon.
        await self._clock.sleep(_WRITTEN_SECONDS)
        end: int | None = None
        try:
            request_end = _offset_request(key, _LATEST, "read_uncommitted")
            listed = await self._answered(leader, connection, request_end)
            partition = listed.topics[0].partitions[0]
            end = partition.offset if partition.error_code == ErrorCode.NONE else None
        except NoAnswer:
            pass
        return self._base_offset(key, await producing), end

    def _produce_request(self, batch: OutgoingBatch, acks: int) -> ProduceRequest:
        key = batch.key
        data = PartitionProduceData(index=key.partition, records=self._encode(batch))
        topic = TopicProduceData(
            name=key.topic, topic_id=self._topic_ids[key.topic], partition_data=[data]
        )
        return ProduceRequest(acks=acks, timeout_ms=_REQUEST_TIMEOUT_MS, topic_data=[topic])

    def _base_offset(self, key: Key, answer: ProduceResponse) -> int:
        partition = answer.responses[0].partition_responses[0]
        self._refuse(key, partition.error_code)
        return partition.base_offset

    async def fetch(
        self, positions: Mapping[Key, int], isolation: Isolation, wait_seconds: float
    ) -> list[Fetched]:
        by_leader: dict[Address, dict[Key, int]] = defaultdict(dict)
        for key, position in positions.items():
            by_leader[await self._leader(key)][key] = position
        answers: list[Fetched] = []
        refused = 0
        for leader, wanted in by_leader.items():
            request = self._fetch_request(wanted, isolation, wait_seconds)
            version = self._random.choice(_FETCH_VERSIONS)
            answer = await self._ask(leader, "fetch", request, version)
            _refuse(answer.error_code)
            names = {topic_id: name for name, topic_id in self._topic_ids.items()}
            for topic in answer.responses:
                name = topic.topic or names[topic.topic_id]
                for partition in topic.partitions:
                    key = Key(name, partition.partition_index)
                    if partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                        answers.append(Fetched(key, [], wanted[key], -1, out_of_range=True))
                        continue
                    if partition.error_code != ErrorCode.NONE:
                        self._forget_stale(key, partition.error_code)
                        refused = refused or partition.error_code
                        continue
                    answers.append(self._decode(key, wanted[key], partition))
                    answers[-1].host = leader[0]
        if not answers:
            _refuse(refused)
        return answers

    async def end_offset(self, key: Key, isolation: Isolation = "read_committed") -> int:
        return await self._offset(key, _LATEST, isolation)

    async def log_start(self, key: Key) -> int:
        return await self._offset(key, _EARLIEST, "read_committed")

    async def _offset(self, key: Key, timestamp: int, isolation: Isolation) -> int:
        leader = await self._leader(key)
        answer = await self._ask(leader, "produce", _offset_request(key, timestamp, isolation))
        self.offset_host = leader[0]
        partition = answer.topics[0].partitions[0]
        self._refuse(key, partition.error_code)
        return partition.offset

    async def delete_records(self, key: Key, offset: int) -> int:
        leader = await self._leader(key)
        answer = await self._ask(
            leader,
            "produce",
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=key.topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=key.partition, offset=offset)
                        ],
                    )
                ],
                timeout_ms=_REQUEST_TIMEOUT_MS,
            ),
        )
        partition = answer.topics[0].partitions[0]
        self._refuse(key, partition.error_code)
        return partition.low_watermark

    def forget(self) -> None:
        self._leaders.clear()

    async def close(self) -> None:
        for connection in self._connections.values():
            if connection.is_open:
                await connection.close()

    # --- records ---

    def _encode(self, batch: OutgoingBatch) -> bytearray:
        now_ms = self._clock.time_ms()
        return encode_batch(
            [new_record(value, batch.padding_bytes, now_ms) for value in batch.values],
            compression=Compression[batch.codec.upper()],
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
        )

    def _decode(self, key: Key, position: int, partition: FetchablePartitionResponse) -> Fetched:
        data = partition.records
        assert not isinstance(data, list), "a decoded answer has its records in one view"
        fetched = Fetched(
            key,
            [],
            position,
            partition.high_watermark,
            partition.last_stable_offset,
            log_start=partition.log_start_offset,
        )
        records: dict[int, list[Record]] = {}
        for place, header in iterate_batches(data or b""):
            of_batch = [] if header.is_control else list(decode_batch(data or b"", place, header))
            # A log may begin within a batch. Records below its start are deleted.
            wanted = [record for record in of_batch if record.offset >= position]
            fetched.batches.append(_stored(key, header, data or b"", place, wanted))
            fetched.next_offset = max(fetched.next_offset, header.last_offset + 1)
            records[header.base_offset] = of_batch
        if self._inspect is not None and data:
            self._inspect(data, [record for of_batch in records.values() for record in of_batch])
        for header, _ in visible_batches(data or b"", partition.aborted_transactions or []):
            fetched.records += [
                (record.offset, value_of(record))
                for record in records[header.base_offset]
                if record.offset >= position
            ]
        return fetched

    # --- requests ---

    def _fetch_request(
        self, wanted: Mapping[Key, int], isolation: Isolation, wait_seconds: float
    ) -> FetchRequest:
        topics: dict[str, FetchTopic] = {}
        for key, position in wanted.items():
            topic = topics.setdefault(
                key.topic, FetchTopic(topic=key.topic, topic_id=self._topic_ids[key.topic])
            )
            topic.partitions.append(
                FetchPartition(
                    partition=key.partition,
                    fetch_offset=position,
                    partition_max_bytes=self._random.choice((1, 4096, 65536)),
                )
            )
        return FetchRequest(
            max_wait_ms=int(wait_seconds * 1000),
            min_bytes=1,
            max_bytes=self._random.choice((8192, 1 << 20)),
            isolation_level=_ISOLATIONS[isolation],
            topics=list(topics.values()),
        )

    def _refuse(self, key: Key, code: int) -> None:
        self._forget_stale(key, code)
        _refuse(code)

    def _forget_stale(self, key: Key, code: int) -> None:
        if code in _STALE:
            self._leaders.pop(key, None)

    async def _leader(self, key: Key) -> Address:
        if key not in self._leaders:
            async with self._asking:
                if key not in self._leaders:
                    await self._learn_leaders()
        if key not in self._leaders:
            raise RequestRefused(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader for {key}")
        return self._leaders[key]

    async def _learn_leaders(self) -> None:
        answer = await self._ask_anyone(
            MetadataRequest(topics=None, allow_auto_topic_creation=False)
        )
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._leaders.clear()
        for topic in answer.topics:
            if topic.name is None or topic.error_code != ErrorCode.NONE:
                continue
            self._topic_ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                if partition.leader_id in addresses and partition.error_code == ErrorCode.NONE:
                    key = Key(topic.name, partition.partition_index)
                    self._leaders[key] = addresses[partition.leader_id]

    async def _ask_anyone(self, request: Request[R]) -> R:
        """Ask the brokers one after the other until one answers."""
        why = "no broker is known"
        for address in self._shuffled_addresses():
            try:
                return await self._ask(address, "produce", request)
            except NoAnswer as error:
                why = str(error)
        raise NoAnswer(why)

    def _shuffled_addresses(self) -> list[Address]:
        addresses = self._bootstrap()
        self._random.shuffle(addresses)
        return addresses

    async def _ask(
        self, address: Address, purpose: str, request: Request[R], version: int | None = None
    ) -> R:
        connection = await self._connected(address, purpose)
        return await self._answered(address, connection, request, version)

    async def _connected(self, address: Address, purpose: str) -> BrokerConnection:
        with self._failures(address):
            return await self._connection(address, purpose)

    async def _answered(
        self,
        address: Address,
        connection: BrokerConnection,
        request: Request[R],
        version: int | None = None,
    ) -> R:
        with self._failures(address):
            return await connection.request(request, version)

    @contextmanager
    def _failures(self, address: Address) -> Iterator[None]:
        """Translate the client's errors into those of a LogClient."""
        try:
            yield
        except errors.RequestFailed as error:
            # The broker there may no longer lead the partition, or may have another address.
            for key in [key for key, leader in self._leaders.items() if leader == address]:
                del self._leaders[key]
            raise NoAnswer(error.why) from error
        except errors.RequestRefused as error:
            raise RequestRefused(error.code, error_name(error.code)) from error

    async def _connection(self, address: Address, purpose: str) -> BrokerConnection:
        place = (address, purpose)
        async with self._connecting[place]:
            connection = self._connections.get(place)
            if connection is None or not connection.is_open:
                connection = self._connections[place] = await BrokerConnection.open(
                    self._network, address, SETTINGS, self._scratch
                )
            return connection


def _create_request(topic: str, partitions: int, configs: Mapping[str, str]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic,
                num_partitions=partitions,
                replication_factor=1,
                configs=[
                    CreatableTopicConfig(name=name, value=value) for name, value in configs.items()
                ],
            )
        ],
        timeout_ms=_REQUEST_TIMEOUT_MS,
    )


def _created(answer: CreateTopicsResponse) -> bool:
    code = answer.topics[0].error_code
    if code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    _refuse(code)
    return True


def _delete_request(topic: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(
        topics=[DeleteTopicState(name=topic)],
        topic_names=[topic],
        timeout_ms=_REQUEST_TIMEOUT_MS,
    )


def _check_deleted(answer: DeleteTopicsResponse) -> None:
    code = answer.responses[0].error_code
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        _refuse(code)


def _offset_request(key: Key, timestamp: int, isolation: Isolation) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=key.partition, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=_ISOLATIONS[isolation],
        topics=[ListOffsetsTopic(name=key.topic, partitions=[partition])],
    )


def _refuse(code: int) -> None:
    if code != ErrorCode.NONE:
        raise RequestRefused(code, error_name(code))


def _stored(
    key: Key, header: BatchHeader, data: Buffer, place: int, records: list[Record]
) -> StoredBatch:
    marker = parse_marker(data, place) if header.is_control else None
    return StoredBatch(
        key,
        header.base_offset,
        header.last_offset,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        header.is_control,
        header.is_transactional,
        marker is not None and marker.type is MarkerType.COMMIT,
        tuple(value_of(record) for record in records),
    )
