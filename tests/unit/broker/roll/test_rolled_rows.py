"""Rolls on a whole broker: which records get into the table, and under which offsets."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.rolled import (
    decided,
    flush,
    hosted,
    offsets,
    rows,
    segments,
    settled,
    table_state,
    world,
)
from tests.unit.broker.transactional_client import GROUP, SECOND, TransactionalClient, find, loaded
from tidelog.broker.roll import segment_builder
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch

OK = ErrorCode.NONE


def test_decided_records_are_in_the_table_after_a_flush() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"a", None, b""))
            headers = [("h", b"1"), ("n", None)]
            await one.produce(encode_batch([NewRecord(b"d", None, headers, -1)]))
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [(row["offset"], row["key"], row["value"]) for row in found] == [
                (0, b"k0", b"a"),
                (1, b"k1", None),
                (2, b"k2", b""),
                (3, None, b"d"),
            ]
            stamps = [row["timestamp"] and row["timestamp"].timestamp() for row in found]
            assert stamps == [1.0, 1.001, 1.002, None]
            assert found[3]["headers"] == [
                {"key": "h", "value": b"1"},
                {"key": "n", "value": None},
            ]
            log = hosted(one).log
            assert (log.table_next, len(log.extents)) == (4, 0)
            # The partition's size is now that of its segments.
            (key,) = await segments(here.store, topic_id)
            stored = await one.broker.topic_tables.tables.stored_bytes(topic_id)
            assert stored == {0: (await here.store.head(key)).size}
            assert (await table_state(here.store, topic_id)).metadata["name"] == TOPIC
            # Without new records there is no commit.
            await flush(one)
            assert (await table_state(here.store, topic_id)).version == 0
            await one.produce(batch(b"e"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 1, 2, 3, 4]

    run(story)


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_unpacked(codec: Compression) -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for first in range(0, 30, 10):
                records = [NewRecord(b"v%d" % n * 20, None) for n in range(first, first + 10)]
                await one.produce(encode_batch(records, compression=codec))
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [row["value"] for row in found] == [b"v%d" % n * 20 for n in range(30)]
            read = await one.read_all()
            assert [each.value for each in read] == [row["value"] for row in found]

    run(story)


def test_accepted_batches_are_rolled_whatever_larger_ones_are_refused_now() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            records = [NewRecord(b"%d" % n * 1000) for n in range(8)]
            await one.produce(encode_batch(records, compression=Compression.ZSTD))
        here.settings = world(decompressed_bytes_max=4000).settings
        async with here.broker() as one:
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(8))

    run(story)


@pytest.mark.parametrize(
    ("tail_cache_bytes", "tail_read_bytes"), [(1 << 20, 1 << 16), (0, 1 << 16), (0, 128)]
)
def test_aborted_records_and_markers_are_left_out_and_offsets_kept(
    tail_cache_bytes: int, tail_read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tail_read_bytes`: if small, an object's index takes a second read."""
    monkeypatch.setattr("tidelog.wal.read.index.TAIL_READ_BYTES", tail_read_bytes)
    here = world(tail_cache_bytes=tail_cache_bytes)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            first = TransactionalClient(one, "first", SECOND)
            second = TransactionalClient(one, "second", SECOND)
            assert await first.init() is OK
            assert await second.init() is OK
            assert await first.send(b"yes") is OK
            assert await second.send(b"no") is OK
            await one.produce(batch(b"plain"))
            assert await first.send(b"yes too") is OK
            assert await second.abort() is OK
            assert await first.commit() is OK
            assert await first.send(b"again") is OK
            assert await first.commit() is OK
            await decided(one, 8)
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [(row["offset"], row["value"]) for row in found] == [
                (0, b"yes"),
                (2, b"plain"),
                (3, b"yes too"),
                (6, b"again"),
            ]
            ordinals = [row["transaction"] for row in found]
            assert ordinals[0] == ordinals[2] is not None
            assert ordinals[1] is None
            assert ordinals[3] == ordinals[0] + 1
            assert found[0]["producer_id"] == first.producer_id
            assert (await table_state(here.store, topic_id)).partition(0).next_offset == 8

    run(story)


def test_an_open_transaction_holds_back_records_behind_its_begin() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            await one.produce(batch(b"before"))
            assert await client.send(b"in it") is OK
            await one.produce(batch(b"behind"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0]
            await flush(one)
            assert (await table_state(here.store, topic_id)).version == 0
            assert await client.commit() is OK
            await decided(one, 4)
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 1, 2]

    run(story)


def test_a_range_without_a_committed_row_advances_the_table_without_a_file() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            topic_id = await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.send(b"no") is OK
            assert await client.abort() is OK
            await decided(one, 2)
            await flush(one)
            state = await table_state(here.store, topic_id)
            assert (state.partition(0).next_offset, state.segment_count) == (2, 0)
            assert await segments(here.store, topic_id) == []

    run(story)


def test_deleted_records_are_left_out() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(3):
                await one.produce(batch(b"a", b"b", b"c", b"d"))
            await one.broker.writes.appender.delete_records(hosted(one), 6)
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(6, 12))
            (stored,) = (await table_state(here.store, topic_id)).partition(0).segments
            assert stored.segment.name.base_offset == 6
            await one.produce(batch(b"e"))
            await one.broker.writes.appender.delete_records(hosted(one), 13)
            await flush(one)
            state = await table_state(here.store, topic_id)
            assert (state.partition(0).next_offset, state.segment_count) == (13, 1)

    run(story)


def test_a_large_partition_becomes_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = segment_builder.SegmentBounds(raw_bytes_max=1000, piece_bytes_max=400)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(20):
                await one.produce(batch(bytes(300)))
            await flush(one)
            state = await table_state(here.store, topic_id)
            names = [stored.segment.name for stored in state.partition(0).segments]
            assert len(names) == 5
            assert [name.base_offset for name in names] == [0, 4, 8, 12, 16]
            assert await offsets(here.store, topic_id) == list(range(20))

    run(story)


def test_many_extents_are_taken_up_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = segment_builder.SegmentBounds(piece_extents_max=3)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for number in range(20):
                await one.produce(batch(b"%d" % number))
            await flush(one)
            (stored,) = (await table_state(here.store, topic_id)).partition(0).segments
            assert stored.segment.row_count == 20
            assert await offsets(here.store, topic_id) == list(range(20))

    run(story)


def test_internal_topics_are_not_rolled() -> None:
    here = world(roll_bytes=1)

    async def story() -> None:
        async with here.broker() as one:
            await loaded(one)
            await one.create_topic()
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.send(b"a") is OK
            await find(one, GROUP, 0)
            assert await client.commit_offset(7) is OK
            assert await client.commit() is OK
            await settled(one, 2)
        keys = [meta.key async for meta in here.store.list("topics/")]
        assert {key.split("/")[1] for key in keys} == {
            str(topic.topic_id)
            for topic in one.broker.membership.metadata.state.topics.values()
            if not topic.internal
        }

    run(story)


@pytest.mark.parametrize("tail_cache_bytes", [0, 1 << 20])
def test_readers_cross_from_segments_into_the_wal_while_it_is_rolled(tail_cache_bytes: int) -> None:
    here = world(
        roll_bytes=1, roll_min_bytes=0, tail_cache_bytes=tail_cache_bytes, roll_spread_ms=0
    )
    count = 120

    async def write(one: OneBroker) -> None:
        for number in range(count):
            await one.produce(batch(b"%d" % number))

    async def read(one: OneBroker, *, committed: bool) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        while len(found) < count:
            answer = await one.fetch(len(found), wait_ms=100, committed=committed)
            assert answer.error_code == OK
            records = decode_records(b"".join(answer.records or ()))
            found += [(each.offset, each.value) for each in records if each.offset >= len(found)]
        return found

    async def story() -> None:
        expected = [(number, b"%d" % number) for number in range(count)]
        async with here.broker() as one:
            topic_id = await one.create_topic()
            reading = [
                asyncio.create_task(read(one, committed=committed)) for committed in (True, False)
            ]
            await write(one)
            assert await asyncio.gather(*reading) == [expected, expected]
            # A late reader, which reads almost all records from segments.
            assert await read(one, committed=True) == expected
            assert (await table_state(here.store, topic_id)).version > 1
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(count))

    run(story)
