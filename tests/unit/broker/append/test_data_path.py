"""Produce, fetch, offsets and their durability, through the handlers of a whole broker."""

from __future__ import annotations

import asyncio

from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tidelog.broker.handlers.data.offsets import delete_records, offset_for_leader_epoch
from tidelog.broker.handlers.transactions.transactions import init_producer_id
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.protocol.schemas.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.schemas.transactions import InitProducerIdRequest
from tidelog.storage.stores.memory import MemoryStore


def new_world(**settings: object) -> World:
    return World(MemoryStore(SystemClock(), "memory://test"), **settings)


def values(records: object) -> list[bytes | None]:
    return [record.value for record in records]  # type: ignore[attr-defined]


def test_acknowledged_records_are_read_at_their_offsets() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            first = await one.produce(batch(b"a", b"b"))
            second = await one.produce(batch(b"c"))
            assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
            found = await one.read_all()
            assert [(r.offset, r.value) for r in found] == [(0, b"a"), (1, b"b"), (2, b"c")]
            answer = await one.fetch(1)
            assert (answer.high_watermark, answer.last_stable_offset) == (3, 3)

    run(story)


def test_a_new_broker_on_the_bucket_serves_everything_and_goes_on() -> None:
    async def story() -> None:
        world = new_world()
        for number in range(4):
            async with world.broker(politely=number % 2 == 0) as one:
                if number == 0:
                    await one.create_topic(partitions=2)
                answer = await one.produce(batch(b"%d" % number))
                assert answer.base_offset == number
                assert values(await one.read_all()) == [b"%d" % n for n in range(number + 1)]
                assert await one.read_all(partition=1) == []

    run(story)


def test_a_restart_without_writes_keeps_the_log() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker(politely=False) as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
        for _ in range(3):
            async with world.broker(politely=False) as one:
                assert values(await one.read_all()) == [b"a"]
        async with world.broker() as one:
            assert (await one.produce(batch(b"b"))).base_offset == 1
            assert values(await one.read_all()) == [b"a", b"b"]

    run(story)


def test_a_repeated_idempotent_batch_gets_its_first_offset_even_after_a_restart() -> None:
    async def story() -> None:
        world = new_world()
        identity = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        async with world.broker(politely=False) as one:
            await one.create_topic()
            assert (await one.produce(batch(b"a", **identity))).base_offset == 0
            assert (await one.produce(batch(b"a", **identity))).base_offset == 0
        async with world.broker() as one:
            assert (await one.produce(batch(b"a", **identity))).base_offset == 0
            gap = await one.produce(batch(b"c", **{**identity, "base_sequence": 2}))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert values(await one.read_all()) == [b"a"]

    run(story)


def test_a_bad_batch_is_refused_and_the_others_go_on() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            broken = batch(b"broken")
            broken[-1] ^= 1
            answers = await asyncio.gather(
                one.produce(batch(b"a")), one.produce(broken), one.produce(batch(b"b"))
            )
            codes = [answer.error_code for answer in answers]
            assert codes == [0, ErrorCode.CORRUPT_MESSAGE, 0]
            assert values(await one.read_all()) == [b"a", b"b"]
            missing = await one.produce(batch(b"x"), topic="nowhere")
            assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert missing.base_offset == -1

    run(story)


def test_a_fetch_waits_for_records_and_gives_up_in_time() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            waiting = asyncio.create_task(one.fetch(0, wait_ms=30_000))
            await asyncio.sleep(0)
            await one.produce(batch(b"a"))
            assert (await waiting).records
            empty = await one.fetch(1, wait_ms=1)
            assert (empty.error_code, empty.records) == (0, [])
            outside = await one.fetch(5, wait_ms=30_000)
            assert outside.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(story)


def test_a_fetch_keeps_its_limits_but_always_goes_on() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            sizes = [len(b) for b in [batch(b"x" * 1000)] * 3]
            for _ in range(3):
                await one.produce(batch(b"x" * 1000))
            assert sum(map(len, (await one.fetch(0, bytes_max=1)).records)) == sizes[0]
            two = (await one.fetch(0, bytes_max=sizes[0] * 2 + 10)).records
            assert sum(map(len, two)) == sizes[0] * 2

    run(story)


def test_offsets_by_time_and_of_the_ends() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a", b"b", b"c"))
            await one.produce(batch(b"d"))
            assert (await one.offsets(-2)).offset == 0
            assert (await one.offsets(-4)).offset == 0
            assert (await one.offsets(-1)).offset == 4
            assert (await one.offsets(-1, committed=True)).offset == 4
            assert (await one.offsets(-5)).offset == -1
            at = await one.offsets(1001)
            assert (at.timestamp, at.offset) == (1001, 1)
            newest = await one.offsets(-3)
            assert (newest.timestamp, newest.offset) == (1002, 2)
            assert (await one.offsets(5000)).offset == -1
            assert (await one.offsets(-9)).error_code == ErrorCode.UNSUPPORTED_VERSION

    run(story)


def test_log_append_time_and_the_topics_codec_hold_for_stored_batches() -> None:
    async def story() -> None:
        async with new_world().broker() as one:
            await one.create_topic(message_timestamp_type="LogAppendTime", compression_type="zstd")
            answer = await one.produce(batch(b"a" * 1000))
            assert answer.log_append_time_ms > 1_600_000_000_000
            (record,) = await one.read_all()
            assert record.timestamp == answer.log_append_time_ms
            assert record.value == b"a" * 1000
            assert sum(map(len, (await one.fetch(0)).records or [])) < 300

    run(story)


async def delete_up_to(one: OneBroker, offset: int) -> tuple[int, int]:
    request = DeleteRecordsRequest(
        timeout_ms=5000,
        topics=[
            DeleteRecordsTopic(
                name="flights",
                partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)],
            )
        ],
    )
    response = await delete_records(one.broker.services.data, request, one.context(2))
    result = response.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_deleted_records_stay_deleted() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker(politely=False) as one:
            await one.create_topic()
            for value in (b"a", b"b", b"c"):
                await one.produce(batch(value))
            assert await delete_up_to(one, 2) == (0, 2)
            assert (await one.offsets(-2)).offset == 2
            below = await one.fetch(1)
            assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            assert await delete_up_to(one, 9) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        async with world.broker() as one:
            assert (await one.offsets(-2)).offset == 2
            assert values(await one.read_all()) == [b"c"]
            assert await delete_up_to(one, -1) == (0, 3)
            assert await one.read_all() == []
            assert (await one.produce(batch(b"d"))).base_offset == 3

    run(story)


def test_leader_epochs_grow_with_each_broker() -> None:
    async def story() -> None:
        world = new_world()
        for number in range(2):
            async with world.broker(politely=False) as one:
                if number == 0:
                    await one.create_topic()
                await one.produce(batch(b"a"))
        async with world.broker() as one:
            request = OffsetForLeaderEpochRequest(
                topics=[
                    OffsetForLeaderTopic(
                        topic="flights",
                        partitions=[
                            OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
                            for epoch in (0, 1, 7)
                        ],
                    )
                ]
            )
            response = await offset_for_leader_epoch(
                one.broker.services.data, request, one.context(4)
            )
            ends = [(p.leader_epoch, p.end_offset) for p in response.topics[0].partitions]
            assert ends == [(0, 1), (1, 2), (-1, -1)]

    run(story)


def test_producer_ids_are_never_given_twice() -> None:
    async def story() -> None:
        world = new_world()
        seen: list[int] = []
        for _ in range(2):
            async with world.broker(politely=False) as one:
                for _ in range(3):
                    request = InitProducerIdRequest(transactional_id=None)
                    answer = await init_producer_id(
                        one.broker.services.transactions, request, one.context(4)
                    )
                    assert (answer.error_code, answer.producer_epoch) == (0, 0)
                    seen.append(answer.producer_id)
        assert len(set(seen)) == 6

    run(story)


def test_a_corrupt_wal_object_is_named_and_harms_only_its_partition() -> None:
    async def story() -> None:
        world = new_world(tail_cache_bytes=0)
        async with world.broker() as one:
            await one.create_topic(partitions=2)
            await one.produce(batch(b"a"), partition=0)
            await one.produce(batch(b"b"), partition=1)
            partition = one.broker.writes.partitions.named("flights", 0)
            (extent,) = partition.log.extents
            whole = bytearray((await world.store.get(extent.key)).data)
            whole[extent.position + 70] ^= 1
            await world.store.put(extent.key, whole)
            broken = await one.fetch(0, partition=0)
            assert broken.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert one.broker.metrics.storage_faults == 1
            assert values(await one.read_all(partition=1)) == [b"b"]

    run(story)


def test_a_second_broker_with_the_same_id_is_fenced_by_its_seal() -> None:
    async def story() -> None:
        world = new_world(wal_linger_ms=0)
        world.sees_processes = False
        async with world.broker(politely=False) as old:
            await old.create_topic()
            await old.produce(batch(b"a"))
            async with world.broker() as new:
                refused = await old.produce(batch(b"zombie"))
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert (await new.produce(batch(b"b"))).base_offset == 1
                assert values(await new.read_all()) == [b"a", b"b"]
            ended = await asyncio.gather(old.run, return_exceptions=True)
            assert "superseded" in str(ended[0]) or "fenced" in str(ended[0])

    run(story)
