"""Edges of the data path where modules meet: limits, deletions, timeouts, and a stop under way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from tests.unit.broker.append.test_data_path import delete_up_to, new_world, values
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.append.appender import INLINE_BYTES_MAX, prepare
from tidelog.broker.handlers.data.fetch import fetch
from tidelog.broker.handlers.data.offsets import offset_for_leader_epoch
from tidelog.broker.handlers.transactions.transactions import init_producer_id
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope, TopicDeleted
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.schemas.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.schemas.transactions import InitProducerIdRequest
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.object_store import (
    AccessDenied,
    ByteRange,
    Condition,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import RetryingStore
from tidelog.workers.offload import InlineOffload

P = ParamSpec("P")
T = TypeVar("T")


async def fetch_many(
    one: OneBroker,
    offsets: Sequence[int],
    *,
    bytes_max: int,
    partition_bytes_max: int,
    bytes_min: int = 1,
    wait_ms: int = 0,
) -> FetchResponse:
    """The partitions 0, 1, ... of the topic from these offsets on."""
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        topics=[
            FetchTopic(
                topic=TOPIC,
                partitions=[
                    FetchPartition(
                        partition=number,
                        fetch_offset=offset,
                        partition_max_bytes=partition_bytes_max,
                    )
                    for number, offset in enumerate(offsets)
                ],
            )
        ],
    )
    return await fetch(one.broker.services.data, request, one.context(12))


def size_bytes(response: FetchResponse) -> int:
    total = 0
    for topic in response.responses:
        for partition in topic.partitions:
            total += sum(map(len, partition.records or ()))
    return total


async def epoch_ends(one: OneBroker, *epochs: int) -> list[tuple[int, int]]:
    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic=TOPIC,
                partitions=[
                    OffsetForLeaderPartition(partition=0, leader_epoch=epoch) for epoch in epochs
                ],
            )
        ]
    )
    response = await offset_for_leader_epoch(one.broker.services.data, request, one.context(4))
    return [(p.leader_epoch, p.end_offset) for p in response.topics[0].partitions]


def test_the_first_leader_epoch_is_known_while_it_lasts() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            assert await epoch_ends(one, 0) == [(0, 0)]
            await one.produce(batch(b"a", b"b"))
            assert await epoch_ends(one, 0, 1, -1) == [(0, 2), (-1, -1), (-1, -1)]
            assert (await one.offsets(-1)).leader_epoch == 0
            assert (await one.offsets(1000)).leader_epoch == 0

    run(story)


def test_a_fetch_that_allows_no_bytes_still_goes_on() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            await one.produce(batch(b"x" * 100))
            await one.produce(batch(b"x" * 100))
            one_batch = len(batch(b"x" * 100))
            for limits in ((0, 1000), (1000, 0), (0, 0), (-1, -1)):
                answer = await fetch_many(
                    one, [0], bytes_max=limits[0], partition_bytes_max=limits[1]
                )
                assert size_bytes(answer) == one_batch, limits

    run(story)


def test_a_fetch_does_not_wait_for_more_than_it_allows() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            for _ in range(4):
                await one.produce(batch(b"x" * 1000))
            async with asyncio.timeout(10):
                answer = await fetch_many(
                    one,
                    [0],
                    bytes_max=1500,
                    partition_bytes_max=1 << 20,
                    bytes_min=1 << 30,
                    wait_ms=60_000,
                )
            assert size_bytes(answer) >= 1000

    run(story)


class CountingStore(MemoryStore):
    """Counts the bytes that are read by range."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), "memory://test")
        self.range_bytes = 0

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        stored = await super().get(key, byte_range)
        if isinstance(byte_range, ByteRange):
            self.range_bytes += len(stored.data)
        return stored


def test_a_fetch_reads_no_more_from_the_store_than_it_may_answer() -> None:
    async def story() -> None:
        store = CountingStore()
        world = World(store)
        partitions, size = 20, 500_000
        async with world.broker() as one:
            await one.create_topic(partitions=partitions)
            for number in range(partitions):
                await one.produce(batch(b"x" * size), number)
        async with world.broker() as one:
            store.range_bytes = 0
            answer = await fetch_many(
                one, [0] * partitions, bytes_max=2 * size, partition_bytes_max=size
            )
            assert size_bytes(answer) > 0
            assert store.range_bytes < 4 * size

    run(story)


def test_settings_and_topics_may_change_in_one_entry() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            topic_id = await one.create_topic()
            await one.create_topic("other")
            epoch = one.broker.membership.incarnation.epoch
            changes = (
                ConfigsChanged(ConfigScope.CLUSTER, "", {"log.retention.ms": "1000"}),
                TopicDeleted(topic_id),
            )
            await one.broker.membership.metadata.append(epoch, lambda _: changes)
            assert (await one.produce(batch(b"a"), topic="other")).error_code == 0
            gone = await one.produce(batch(b"a"))
            assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story)


def test_the_largest_timestamp_is_that_of_a_record_that_is_left() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            await asyncio.gather(*(one.produce(batch(*[b"x"] * count)) for count in (3, 1, 2)))
            assert (await one.offsets(-3)).offset == 2
            assert await delete_up_to(one, 3) == (0, 3)
            found = await one.offsets(-3)
            assert (found.timestamp, found.offset) == (1001, 5)

    run(story)


def test_times_are_found_in_a_batch_of_many_megabytes() -> None:
    async def story() -> None:
        async with new_world(decompressed_bytes_max=1 << 30).broker() as one:
            await one.create_topic()
            records = [NewRecord(b"x" * 1_000_000, timestamp=1000 + n) for n in range(80)]
            answer = await one.produce(encode_batch(records, compression=Compression.ZSTD))
            assert answer.error_code == 0
            assert (await one.offsets(1060)).offset == 60
            assert (await one.offsets(-3)).offset == 79

    run(story)


def test_special_times_are_known_from_their_version_on() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            for timestamp, since in ((-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9)):
                assert (await one.offsets(timestamp, version=since)).error_code == 0
                if since > 1:
                    early = await one.offsets(timestamp, version=since - 1)
                    assert early.error_code == ErrorCode.UNSUPPORTED_VERSION

    run(story)


def test_a_duplicate_is_answered_with_the_time_of_the_original() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic(message_timestamp_type="LogAppendTime")
            data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
            first = await one.produce(bytes(data))
            await asyncio.sleep(0.02)
            again = await one.produce(bytes(data))
            assert again.base_offset == 0
            assert again.log_append_time_ms == first.log_append_time_ms

    run(story)


def test_a_broker_stops_politely_though_a_checkpoint_cannot_be_written() -> None:
    class NoCheckpoints(MemoryStore):
        async def put(self, key, data, condition=None):  # type: ignore[no-untyped-def]
            if key.startswith("checkpoint/"):
                raise StoreNotApplied(key, "no")
            return await super().put(key, data, condition)

    async def story() -> None:
        world = World(NoCheckpoints(SystemClock(), "memory://test"))
        async with world.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
        async with world.broker() as one:
            assert values(await one.read_all()) == [b"a"]

    run(story)


def test_records_with_acks_0_wait_for_the_store_and_are_counted() -> None:
    async def story() -> None:
        store = GatedStore(MemoryStore(SystemClock(), "memory://test"))
        store.open()
        world = World(store, wal_buffer_max_bytes=1 << 20, wal_object_max_bytes=1 << 20)
        async with world.broker() as one:
            await one.create_topic()
            store.is_open = False
            async with asyncio.TaskGroup() as tasks:
                for count in (3, 5):  # the first ones leave no room
                    for _ in range(count):
                        tasks.create_task(one.send(batch(b"x" * 500_000), timeout_ms=20))
                    await asyncio.sleep(0.1)
                store.open()
            await one.produce(batch(b"last"))
            assert len(await one.read_all()) == 9
            assert one.broker.metrics.produced_records == 9

    run(story)


def test_requests_that_timed_out_take_no_memory() -> None:
    async def story() -> None:
        store = GatedStore(MemoryStore(SystemClock(), "memory://test"))
        store.open()
        world = World(store, wal_buffer_max_bytes=1 << 20, wal_object_max_bytes=1 << 20)
        async with world.broker() as one:
            await one.create_topic()
            store.is_open = False
            for _ in range(40):
                answer = await one.produce(batch(b"x" * 500_000), timeout_ms=20)
                assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            held = sum(s.size_bytes for s in one.broker.writes.appender._waiting)
            store.open()
            assert held < 4 << 20

    run(story)


class SlowCheckpoints(MemoryStore):
    """Holds the puts of checkpoints back until `let_go` is set."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), "memory://test")
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.startswith("checkpoint/"):
            self.begun.set()
            await self.let_go.wait()
        return await super().put(key, data, condition)


def test_an_answered_request_lets_its_records_go_at_once() -> None:
    """Circles of objects would keep the buffers until the garbage collector runs."""

    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            gc.collect()
            gc.disable()
            try:
                for _ in range(20):
                    await one.produce(batch(b"b"))
                assert gc.collect() == 0
            finally:
                gc.enable()

    run(story)


def test_a_topic_of_a_name_that_was_in_use_before_is_another_topic() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            first = await one.create_topic()
            assert (await one.produce(batch(b"a"))).base_offset == 0
            assert (await one.produce(batch(b"b"))).base_offset == 1
            await one.delete_topic(first)
            gone = await one.produce(batch(b"c"))
            assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await one.create_topic()
            assert (await one.produce(batch(b"d"))).base_offset == 0
            assert values(await one.read_all()) == [b"d"]

    run(story)


def test_a_checkpoint_that_is_due_at_the_end_does_not_disturb_the_end() -> None:
    async def story() -> None:
        store = SlowCheckpoints()
        world = World(store, wal_checkpoint_interval_bytes=1)
        async with world.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
            await store.begun.wait()
            await one.produce(batch(b"b"))
            one.life.stop()
            for _ in range(20):
                await asyncio.sleep(0)  # until it waits for the checkpoint that is under way
            store.let_go.set()
        async with world.broker() as one:
            assert values(await one.read_all()) == [b"a", b"b"]

    run(story)


class HeldChecks(InlineOffload):
    """Holds the checks of produced batches back until `let_go` is set."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if function is prepare:
            await self.let_go.wait()
        return await super().run(function, *args, **kwargs)


def test_a_timed_out_produce_does_not_disturb_the_shutdown() -> None:
    async def story() -> None:
        world = new_world()
        world.offload = held = HeldChecks()
        async with world.broker() as one:
            await one.create_topic()
            answer = await one.produce(batch(b"a" * INLINE_BYTES_MAX), timeout_ms=1)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            one.broker.membership.metadata.subscribe(lambda *_: held.let_go.set())
        async with world.broker() as one:
            assert await one.read_all() == []

    run(story)


class Forbidding(MemoryStore):
    """Refuses changes of the metadata while `forbids` is set."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), "memory://test")
        self.forbids = False

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if self.forbids and key.startswith("cluster/log/"):
            raise AccessDenied(key, "forbidden")
        return await super().put(key, data, condition)


def test_a_producer_may_ask_again_for_an_id_that_could_not_be_had() -> None:
    async def story() -> None:
        store = Forbidding()
        async with World(store).broker() as one:
            request = InitProducerIdRequest(transactional_id=None)
            store.forbids = True
            answer = await init_producer_id(
                one.broker.services.transactions, request, one.context(4)
            )
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert answer.producer_id == -1
            store.forbids = False
            answer = await init_producer_id(
                one.broker.services.transactions, request, one.context(4)
            )
            assert answer.error_code == 0

    run(story)


class Rotated(MemoryStore):
    """Denies the next `denials` puts."""

    denials = 0

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if self.denials > 0:
            self.denials -= 1
            raise AccessDenied(key, "the key was rotated")
        return await super().put(key, data, condition)


def test_credentials_that_pass_away_and_come_back_end_no_broker() -> None:
    async def story() -> None:
        rotated = Rotated(SystemClock(), "memory://test")
        store = RetryingStore(rotated, SystemClock(), SeededEntropy(1))
        async with World(store).broker() as one:
            await one.create_topic()
            rotated.denials = 3
            assert (await one.produce(batch(b"a"))).error_code == 0
            assert rotated.denials == 0
            assert [each.value for each in await one.read_all()] == [b"a"]

    run(story)


def test_a_stop_does_not_wait_for_a_fetch_that_finds_nothing() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            parked = asyncio.create_task(one.fetch(0, wait_ms=50_000))
            await asyncio.sleep(0.01)
            one.life.stop()
            async with asyncio.timeout(10):
                answer = await parked
            assert (answer.error_code, answer.records) == (0, [])

    run(story)
