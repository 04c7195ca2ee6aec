"""A whole broker that serves from segments: through its handlers, and after restarts."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.broker.rolled import flush
from tidelog.broker.handlers.data.fetch import API_NAME
from tidelog.clock import SystemClock
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import BatchHeader
from tidelog.records.compression import Compression
from tidelog.records.records import decode_records
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.storage.segment import segment, segment_writer
from tidelog.storage.segment.segment_writer import SegmentWriter
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_change import PartitionChange, TableAdvance
from tidelog.storage.table.table_log import TableCommitted


async def roll(one: OneBroker, topic_id: UUID, partition: int = 0) -> str:
    """Move all records of a partition's WAL into a segment. Returns its key."""
    place = TopicPartition(topic_id, partition)
    log = one.broker.writes.partitions.find(place).log
    # A broker that was killed after the roll leaves images that do not know the new segment.
    log.advance_table(
        (await one.broker.topic_tables.tables.open(topic_id)).partition(partition).next_offset
    )
    base, following = log.table_next, log.high_watermark
    writer = SegmentWriter(place, base)
    answer = await one.fetch(base, partition)
    for rows in decode_rows(b"".join(answer.records or ())):
        writer.write(rows)
    written = writer.finish(following, one.broker.environment.entropy.uuid())
    key = written.segment.key(topic_id)
    one.broker.topic_tables.segment_ages.begin(key, one.broker.environment.clock.monotonic())
    await one.broker.environment.store.put(key, written.pieces)
    change = PartitionChange(
        partition=partition, advance=TableAdvance(base, following), appended=(written.segment,)
    )
    assert isinstance(
        await one.broker.topic_tables.tables.commit(topic_id, (change,)), TableCommitted
    )
    log.advance_table(following)
    return key


def test_successive_brokers_serve_rolled_and_unrolled_records() -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()))
        expected: list[tuple[int, bytes | None, int]] = []
        topic_id = UUID(int=0)
        for politely in (True, False, True, False):
            async with world.broker(politely=politely) as one:
                if not expected:
                    topic_id = await one.create_topic()
                for value in (b"a", b"b"):
                    answer = await one.produce(batch(value, None))
                    expected += [
                        (answer.base_offset, value, 1000),
                        (answer.base_offset + 1, None, 1001),
                    ]
                    if value == b"a":
                        await roll(one, topic_id)
                found = await one.read_all()
                assert [(each.offset, each.value, each.timestamp) for each in found] == expected
                assert (await one.offsets(-2)).offset == 0
                assert (await one.offsets(-4)).offset == 0
                assert (await one.offsets(-1)).offset == len(expected)
                at = await one.offsets(1001)
                assert (at.timestamp, at.offset, at.leader_epoch) == (1001, 1, 0)
                newest = await one.offsets(-3)
                assert (newest.timestamp, newest.offset) == (1001, 1)

    run(story)


def test_a_damaged_segment_fails_one_partition_and_is_counted() -> None:
    async def story() -> None:
        store = MemoryStore(SystemClock())
        async with World(store).broker() as one:
            topic_id = await one.create_topic(partitions=2)
            for partition in (0, 1):
                await one.produce(batch(b"v"), partition)
            key = await roll(one, topic_id, 0)
            await roll(one, topic_id, 1)
            data = bytearray((await store.get(key)).data)
            data[50] ^= 1
            await store.put(key, bytes(data))
            assert (await one.fetch(0, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert [each.value for each in await one.read_all(1)] == [b"v"]
            metrics = one.broker.metrics
            assert metrics.storage_faults == 1
            assert metrics.api(API_NAME).errors.of("KAFKA_STORAGE_ERROR").value == 1
            page = metrics.exposition().decode()
            for line in ("tidelog_cold_chunks_total 1.0", "tidelog_segment_footers_total 2.0"):
                assert line in page
            # Look-ups by time use other columns, which are intact.
            await store.delete(key)
            assert (await one.offsets(1000, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert metrics.storage_faults == 2

    run(story)


def test_the_codec_of_a_topic_holds_for_records_of_segments() -> None:
    async def story() -> None:
        async with World(MemoryStore(SystemClock())).broker() as one:
            topic_id = await one.create_topic(compression_type="zstd")
            await one.produce(batch(b"v" * 1000))
            await roll(one, topic_id)
            answer = await one.fetch(0)
            header = BatchHeader.parse(b"".join(answer.records or ()))
            assert header.compression is Compression.ZSTD

    run(story)


def test_a_segment_of_a_newer_format_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with World(MemoryStore(SystemClock())).broker() as one:
            topic_id = await one.create_topic(retention_ms="-1")
            await one.produce(batch(b"v"))
            key = await roll(one, topic_id)
            monkeypatch.setattr(segment, "FORMAT_VERSION", 0)
            assert (await one.fetch(0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await one.offsets(1000)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            told = [getattr(each, "why", "") for each in caplog.records]
            assert sum(key in why and "use a newer Tidelog" in why for why in told) == 2

    run(story)


def test_consumers_of_all_that_is_there_miss_nothing_while_it_is_rolled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read from segments into the WAL and on to the tail, while the border between them moves."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 7)

    async def story() -> None:
        settings = {"tail_cache_bytes": 20_000, "read_cache_bytes": 200_000}
        async with World(MemoryStore(SystemClock()), **settings).broker() as one:
            await one.create_topic(retention_ms="-1")
            total = 240

            async def consume(start: int, *, committed: bool) -> list[int]:
                position, found = start, list[int]()
                while position < total:
                    answer = await one.fetch(
                        position, bytes_max=3000, wait_ms=1000, committed=committed
                    )
                    assert answer.error_code == 0
                    for record in decode_records(b"".join(answer.records or ())):
                        if record.offset >= position:
                            assert record.value == b"%d" % record.offset
                            found.append(record.offset)
                    position = found[-1] + 1 if found else position
                return found

            async def produce(start: int, end: int) -> None:
                for base in range(start, end, 4):
                    await one.produce(batch(*(b"%d" % each for each in range(base, base + 4))))
                    if base % 24 == 0:
                        await flush(one)

            await produce(0, 80)
            readers = [
                consume(start, committed=committed)
                for start in (0, 70)
                for committed in (True, False)
            ]
            *found, _ = await asyncio.gather(*readers, produce(80, total))
            for start, offsets in zip((0, 0, 70, 70), found, strict=True):
                assert offsets == list(range(start, total))
            # Read again, when almost all records are in the table.
            assert await consume(0, committed=True) == list(range(total))
            assert one.broker.reads.path.chunks.encoded > 0

    run(story)
