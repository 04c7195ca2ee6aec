"""Segments are written, opened by ranges and read back. Damage to them is found or harmless."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from awscrt.checksums import crc32c

from tests.unit.storage.segments import PARTITION, STAMP, TOPIC_ID, data_of, some_rows, written
from tidelog.clock import SystemClock
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment import segment_writer
from tidelog.storage.segment.parquet_seal import seal
from tidelog.storage.segment.segment import METADATA_KEY, Segment, SegmentName, table_prefix
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.segment.segment_writer import SegmentWriter, WrittenSegment
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.workers.offload import InlineOffload

T = TypeVar("T")
COLUMNS = ROW_SCHEMA.names


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Bucket:
    """A store with one segment. Counts the requests."""

    def __init__(self, segment: WrittenSegment) -> None:
        self.store = MeteredStore(MemoryStore(SystemClock()), SystemClock())
        self.segment = segment.segment
        self.key = segment.segment.key(TOPIC_ID)
        self.put(data_of(segment))

    def put(self, data: bytes | memoryview) -> None:
        run(self.store.put(self.key, data))

    async def open(self, segment: Segment | None = None) -> SegmentReader:
        return await SegmentReader.open(
            self.store, InlineOffload(), PARTITION, segment or self.segment
        )

    def requests(self) -> int:
        return self.store.statistics.get.requests


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a hundred rows."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 100)


def test_a_name_is_read_as_it_is_written() -> None:
    name = SegmentName(partition=12, base_offset=5, last_offset=2**40, id=UUID(int=7))
    assert name.path == (
        "partition=12/00000000000000000005-00000001099511627776-"
        "00000000000000000000000000000007.parquet"
    )
    assert SegmentName.parse(name.path) == name


@pytest.mark.parametrize(
    "path",
    [
        "partition=12/5-6-00000000000000000000000000000007.parquet",
        "partition=012/00000000000000000005-00000000000000000006-" + "0" * 32 + ".parquet",
        "partition=12/00000000000000000006-00000000000000000005-" + "0" * 32 + ".parquet",
        "partition=12/part-00000.parquet",
        "_delta_log/00000000000000000000.json",
    ],
)
def test_other_names_are_no_segment_names(path: str) -> None:
    assert SegmentName.parse(path) is None


def test_a_segments_statistics_are_true() -> None:
    rows = some_rows(10, 500)
    found = written([rows], 4, 2000)
    segment = found.segment
    assert segment.key(TOPIC_ID) == table_prefix(TOPIC_ID) + segment.path
    assert (segment.name.base_offset, segment.name.last_offset) == (4, 1999)
    assert segment.size_bytes == len(data_of(found))
    assert segment.crc32c == crc32c(data_of(found))
    assert (segment.row_count, segment.first_row, segment.last_row) == (500, 10, 1008)
    assert segment.undated_rows == rows.column("timestamp").null_count > 0
    stamps = [stamp for stamp in rows.column("timestamp").cast(pa.int64()).to_pylist() if stamp]
    assert (segment.timestamp_min, segment.timestamp_max) == (
        min(stamps) // 1000,
        max(stamps) // 1000,
    )
    contents = [row[name] or b"" for row in rows.to_pylist() for name in ("key", "value")]
    headers = [h for row in rows.to_pylist() for h in row["headers"] or []]
    in_headers = sum(len(h["key"]) + len(h["value"] or b"") for h in headers)
    assert segment.raw_bytes == sum(map(len, contents)) + in_headers


@pytest.mark.usefixtures("small_groups")
def test_rows_come_back_as_they_were_written_and_engines_read_the_same() -> None:
    batches = [some_rows(0, 250), some_rows(600, 130)]
    found = written(batches, 0, 900)
    expected = pa.Table.from_batches(batches)
    file = pq.ParquetFile(pa.BufferReader(data_of(found)))
    assert file.metadata.num_row_groups == 4
    assert file.read().cast(ROW_SCHEMA).equals(expected)

    bucket = Bucket(found)

    async def read_all() -> list[pa.RecordBatch]:
        reader = await bucket.open()
        return await reader.read(0, 1 << 30, COLUMNS)

    assert pa.Table.from_batches(run(read_all())).equals(expected)
    assert bucket.requests() == 2


def test_a_data_frame_library_and_duckdb_read_the_file(tmp_path: Any) -> None:
    rows = some_rows(0, 300)
    path = tmp_path / "segment.parquet"
    path.write_bytes(data_of(written([rows], 0, 600)))
    offsets = rows.column("offset").to_pylist()
    assert pd.read_parquet(path)["offset"].tolist() == offsets
    with duckdb.connect() as connection:
        query = f"select \"offset\", value, headers from read_parquet('{path}') order by 1"
        found = connection.execute(query).fetchall()
    assert [(row[0], row[1]) for row in found] == list(
        zip(offsets, rows.column("value").to_pylist(), strict=True)
    )
    assert [row[2] for row in found] == rows.column("headers").to_pylist()


@pytest.mark.usefixtures("small_groups")
def test_an_offset_is_found_with_one_range_read_once_the_footer_is_known() -> None:
    rows = some_rows(10, 950)
    bucket = Bucket(written([rows], 0, 3000))

    async def story() -> None:
        reader = await bucket.open()
        assert bucket.requests() == 1
        offsets = rows.column("offset").to_pylist()
        for wanted in [0, 10, 11, 208, 209, 210, 1907, 1908]:
            before = bucket.requests()
            [first, *_] = await reader.read(wanted, 1)
            assert first.column("offset")[0].as_py() == min(o for o in offsets if o >= wanted)
            assert first.num_rows <= 100
            assert bucket.requests() == before + 1
        before = bucket.requests()
        assert await reader.read(1909, 1) == []
        assert await reader.read(5000, 1) == []
        assert bucket.requests() == before

    run(story())


@pytest.mark.usefixtures("small_groups")
def test_reading_on_takes_many_row_groups_in_one_range() -> None:
    rows = some_rows(0, 950)
    bucket = Bucket(written([rows], 0, 1900))

    async def story() -> None:
        reader = await bucket.open()
        whole = await reader.read(500, 1 << 30)
        assert pa.Table.from_batches(whole).num_rows == 700
        assert bucket.requests() == 2
        group = reader.index.byte_range(2, 2).length
        two = await reader.read(500, 2 * group + 300)
        assert [batch.num_rows for batch in two] == [50, 100]

    run(story())


@pytest.mark.usefixtures("small_groups")
def test_a_time_is_found_by_statistics_and_two_columns() -> None:
    rows = some_rows(0, 500, size=400)
    bucket = Bucket(written([rows], 0, 1000))
    pairs = [
        (offset, stamp // 1000)
        for offset, stamp in zip(
            rows.column("offset").to_pylist(),
            rows.column("timestamp").cast(pa.int64()).to_pylist(),
            strict=True,
        )
        if stamp is not None
    ]

    async def story() -> None:
        reader = await bucket.open()
        for wanted in [0, STAMP, STAMP + 22, STAMP + 333, STAMP + 996, STAMP + 998]:
            expected = next((pair for pair in pairs if pair[1] >= wanted), None)
            assert await reader.first_since(wanted) == expected
        before = bucket.store.statistics.get.bytes_total
        await reader.first_since(STAMP + 333)
        assert bucket.store.statistics.get.bytes_total - before < 2000
        requests = bucket.requests()
        assert await reader.first_since(STAMP + 10_000) is None
        assert bucket.requests() == requests

    run(story())


def test_rows_without_any_timestamp_are_never_found_by_time() -> None:
    rows = some_rows(0, 5)
    undated = pa.nulls(5, ROW_SCHEMA.field("timestamp").type)
    rows = rows.set_column(1, ROW_SCHEMA.field("timestamp"), undated)
    bucket = Bucket(written([rows], 0, 10))
    assert bucket.segment.timestamp_min is bucket.segment.timestamp_max is None

    async def story() -> None:
        assert await (await bucket.open()).first_since(0) is None

    run(story())


def test_row_groups_are_bounded_by_bytes_and_by_rows() -> None:
    wide = [some_rows(2000 * i, 1000, size=6000) for i in range(4)]
    file = pq.ParquetFile(pa.BufferReader(data_of(written(wide, 0, 8000))))
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    assert sum(sizes) == 4000
    assert max(sizes) * 6000 < 5 * 1024 * 1024
    assert len(sizes) == 5


def test_memory_of_a_writer_beside_the_file_is_a_row_group() -> None:
    rows = some_rows(0, 1000, size=5000)
    writer = SegmentWriter(PARTITION, 0)
    peak, before = 0, pa.total_allocated_bytes()
    for index in range(30):
        shifted = pa.array(pc.add(rows.column("offset"), 2000 * index))
        writer.write(rows.set_column(0, ROW_SCHEMA.field("offset"), shifted))
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert writer.raw_bytes > 100_000_000
    assert peak < 20_000_000


def test_rows_below_the_ones_before_are_refused() -> None:
    writer = SegmentWriter(PARTITION, 10)
    with pytest.raises(ValueError, match="below 10"):
        writer.write(some_rows(8, 5))
    writer.write(some_rows(10, 5))
    with pytest.raises(ValueError, match="below 19"):
        writer.write(some_rows(18, 5))


def test_no_rows_make_no_segment() -> None:
    with pytest.raises(ValueError, match="0 rows"):
        SegmentWriter(PARTITION, 10).finish(20, UUID(int=1))
    writer = SegmentWriter(PARTITION, 10)
    writer.write(some_rows(10, 5))
    with pytest.raises(ValueError, match="ends at 12"):
        writer.finish(12, UUID(int=1))


# Errors name the object and the fault.


def test_an_object_that_is_gone_is_named() -> None:
    bucket = Bucket(written([some_rows(0, 10)], 0, 20))

    async def story() -> None:
        reader = await bucket.open()
        await bucket.store.delete(bucket.key)
        with pytest.raises(ObjectNotFound, match=bucket.key):
            await reader.read(0, 1)
        with pytest.raises(ObjectNotFound, match=bucket.key):
            await bucket.open()

    run(story())


@pytest.mark.parametrize("cut", [1, 8, 100, 100_000])
def test_a_truncated_object_is_named(cut: int) -> None:
    found = written([some_rows(0, 1000)], 0, 2000)
    bucket = Bucket(found)

    async def story() -> None:
        reader = await bucket.open()
        await bucket.store.put(bucket.key, data_of(found)[: max(0, len(data_of(found)) - cut)])
        for attempt in (
            reader.read(0, 1),
            bucket.open(),
            SegmentReader.open_key(bucket.store, InlineOffload(), bucket.key),
        ):
            with pytest.raises(CorruptObject, match=bucket.key):
                await attempt

    run(story())


def test_no_altered_byte_brings_other_rows() -> None:
    found = written([some_rows(0, 60)], 0, 120)
    expected = pa.Table.from_batches([some_rows(0, 60)])
    bucket = Bucket(found)
    chance = random.Random(1)
    named: set[str] = set()

    async def attempt(position: int) -> bool:
        altered = bytearray(data_of(found))
        altered[position] ^= 1 << chance.randrange(8)
        await bucket.store.put(bucket.key, altered)
        try:
            reader = await bucket.open()
            rows = await reader.read(0, 1 << 30, COLUMNS)
        except CorruptObject as error:
            named.add(error.key)
            return False
        assert pa.Table.from_batches(rows).equals(expected), position
        return True

    async def story() -> None:
        positions = chance.sample(range(len(data_of(found))), 600)
        untold = [position for position in positions if await attempt(position)]
        # The page index lies between the rows and the seal, and no reader uses it.
        assert len(untold) < 200
        assert named == {bucket.key}

    run(story())


def test_an_entry_that_contradicts_the_object_is_corruption() -> None:
    bucket = Bucket(written([some_rows(0, 10)], 0, 20))
    other = replace(bucket.segment.name, last_offset=25)

    async def story() -> None:
        for wrong in (
            replace(bucket.segment, size_bytes=bucket.segment.size_bytes + 1),
            replace(bucket.segment, row_count=11),
            replace(bucket.segment, tail_bytes=bucket.segment.tail_bytes + 1),
        ):
            with pytest.raises(CorruptObject, match=bucket.key):
                await bucket.open(wrong)
        moved = replace(bucket.segment, name=other)
        await bucket.store.put(moved.key(TOPIC_ID), (await bucket.store.get(bucket.key)).data)
        with pytest.raises(CorruptObject, match="contradicts"):
            await bucket.open(moved)
        elsewhere = TopicPartition(UUID(int=5), 3)
        key = bucket.segment.key(elsewhere.topic_id)
        await bucket.store.put(key, (await bucket.store.get(bucket.key)).data)
        with pytest.raises(CorruptObject, match="contradicts"):
            await SegmentReader.open(bucket.store, InlineOffload(), elsewhere, bucket.segment)

    run(story())


def with_description(description: bytes | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, ROW_SCHEMA) as writer:
        writer.write_batch(some_rows(0, 10))
        if description is not None:
            writer.add_key_value_metadata({METADATA_KEY: description})
    return b"".join(seal(memoryview(sink.getvalue())).pieces)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (None, "not a segment"),
        (b"{", "does not decode"),
        (b'{"format": 1}', "does not decode"),
        (b"[]", "does not decode"),
    ],
)
def test_a_parquet_file_that_is_no_segment_is_named(
    description: bytes | None, message: str
) -> None:
    bucket = Bucket(written([some_rows(0, 10)], 0, 20))
    bucket.put(with_description(description))
    with pytest.raises(CorruptObject, match=message):
        run(SegmentReader.open_key(bucket.store, InlineOffload(), bucket.key))


def test_a_newer_format_is_refused_with_both_versions() -> None:
    bucket = Bucket(written([some_rows(0, 10)], 0, 20))
    bucket.put(with_description(json.dumps({"format": 2}).encode()))
    with pytest.raises(UnsupportedFormat, match="format 2, this version reads up to 1"):
        run(SegmentReader.open_key(bucket.store, InlineOffload(), bucket.key))


def test_a_damaged_version_is_a_damaged_object() -> None:
    bucket = Bucket(written([some_rows(0, 10)], 0, 20))
    data = bytes(run(bucket.store.get(bucket.key)).data)
    named = data.index(b'"format"')
    for place in range(named, named + 12):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            bucket.put(bytes(changed))
            with pytest.raises(CorruptObject):
                run(SegmentReader.open_key(bucket.store, InlineOffload(), bucket.key))


@pytest.mark.usefixtures("small_groups")
def test_a_long_footer_takes_one_more_read_where_only_the_key_is_known() -> None:
    rows = [some_rows(200 * i, 100, size=1) for i in range(120)]
    bucket = Bucket(written(rows, 0, 24_000))
    assert bucket.segment.tail_bytes > 64 * 1024

    async def story() -> None:
        reader = await SegmentReader.open_key(bucket.store, InlineOffload(), bucket.key)
        assert bucket.requests() == 2
        assert reader.index.groups == 120
        await bucket.open()
        assert bucket.requests() == 3

    run(story())


PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats" / "segment.md"


def test_the_page_on_the_format_names_the_columns_and_the_descriptions_fields() -> None:
    page = PAGE.read_text()
    metadata = pq.read_metadata(pa.BufferReader(data_of(written([some_rows(0, 10)], 0, 20))))
    for name in json.loads(metadata.metadata[METADATA_KEY]):
        assert f"`{name}`" in page
    for number, field in enumerate(ROW_SCHEMA, 1):
        assert f"| {number} | `{field.name}` |" in page


@pytest.mark.usefixtures("small_groups")
def test_a_seal_agrees_with_the_page_on_the_format() -> None:
    data = data_of(written([some_rows(0, 250)], 0, 500))
    footer_length = struct.unpack("<I", data[-8:-4])[0] + 8
    footer, rest = data[-footer_length:], data[:-footer_length]
    count, crc, magic = struct.unpack("<II8s", rest[-16:])
    assert f"magic `{magic.decode()}`" in PAGE.read_text()
    sums = rest[-16 - 4 * count : -16]
    assert crc == crc32c(sums + rest[-16:-12] + footer)
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert count == metadata.num_row_groups * metadata.num_columns == 30
    column = metadata.row_group(1).column(0)
    at = column.data_page_offset
    chunk = data[at : at + column.total_compressed_size]
    assert struct.unpack_from("<I", sums, 4 * metadata.num_columns)[0] == crc32c(chunk)
