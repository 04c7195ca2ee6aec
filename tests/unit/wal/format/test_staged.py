"""Staged objects: a written object is read back, errors name any damage, and adopted batches are
stamped."""

from __future__ import annotations

import asyncio
import struct
from uuid import UUID

import pyarrow as pa
import pytest
from awscrt.checksums import crc32c

from tests.unit.broker.sink_world import rows_of
from tests.unit.storage.segments import TOPIC_ID
from tidelog.bucket.inspection import staged_facts
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject, InvalidConfiguration, UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.compression import Compression
from tidelog.records.records import decode_records
from tidelog.storage.object_store import ByteRange
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.staged_format import FOOTER_BYTES, HEADER_BYTES, StagedFor, check_bodies
from tidelog.wal.log.adoption import Adoption, split_reference, staged_key
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.verify import verify
from tidelog.wal.write import staging
from tidelog.wal.write.staging import Staged, read_staged_index, stage

FOR = StagedFor("pipeline", "query", 7)
FIRST, SECOND = TopicPartition(TOPIC_ID, 0), TopicPartition(TOPIC_ID, 5)


def staged(
    rows: dict[TopicPartition, list[pa.RecordBatch]], batch_bytes: int = 1
) -> tuple[MemoryStore, Staged | None]:
    store = MemoryStore(SystemClock())
    put = stage(store, SystemClock(), SeededEntropy(1), FOR, rows, batch_bytes=batch_bytes)
    return store, asyncio.run(put)


def one_object() -> tuple[str, bytes]:
    store, found = staged({FIRST: [rows_of(b"a", b"b"), rows_of(b"c")], SECOND: [rows_of(b"d")]})
    assert found is not None
    key = staged_key(found.staged_id)
    return key, bytes(asyncio.run(store.get(key)).data)


def test_staged_rows_are_read_again() -> None:
    store, found = staged({FIRST: [rows_of(b"a", b"b"), rows_of(b"c")], SECOND: [rows_of(b"d")]})
    assert found is not None
    assert found.records == {FIRST: 3, SECOND: 1}
    key = staged_key(found.staged_id)
    index = asyncio.run(read_staged_index(store, key))
    assert (index.staged_id, index.purpose, index.record_count) == (found.staged_id, FOR, 4)
    assert index.size_bytes == found.size_bytes
    values = []
    for batch in [each for batches in index.partitions.values() for each in batches]:
        body = asyncio.run(store.get(key, ByteRange(batch.position, batch.length))).data
        header = BatchHeader.parse(body)
        assert (header.base_offset, header.leader_epoch, header.producer_id) == (0, -1, -1)
        values += [record.value for record in decode_records(body)]
    assert values == [b"a", b"b", b"c", b"d"]
    assert check_bodies(key, asyncio.run(store.get(key)).data) == index
    facts = staged_facts(key, asyncio.run(store.get(key)).data)
    assert (facts["query_id"], len(facts["batches"])) == ("query", 4)


def test_an_index_that_is_longer_than_the_first_read_is_read_whole() -> None:
    store, found = staged({FIRST: [rows_of(*[b"value"] * 3000)]})
    assert found is not None
    index = asyncio.run(read_staged_index(store, staged_key(found.staged_id)))
    assert index.record_count == len(index.partitions[FIRST]) == 3000


def test_nothing_is_staged_without_rows() -> None:
    store, found = staged({FIRST: [], SECOND: [rows_of()]})
    assert found is None

    async def keys() -> list[str]:
        return [meta.key async for meta in store.list()]

    assert asyncio.run(keys()) == []


def test_more_than_an_object_may_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STAGED_BYTES_MAX", 100)
    with pytest.raises(InvalidConfiguration, match="stage several objects"):
        staged({FIRST: [rows_of(b"a" * 200)]})


def test_no_altered_or_missing_byte_goes_unseen() -> None:
    key, data = one_object()
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 0x40
        with pytest.raises((CorruptObject, UnsupportedFormat), match=key):
            check_bodies(key, altered)
    for size in range(len(data)):
        with pytest.raises((CorruptObject, UnsupportedFormat), match=key):
            check_bodies(key, data[:size])


def test_a_newer_format_names_both_versions() -> None:
    key, data = one_object()
    newer, footer = bytearray(data), len(data) - FOOTER_BYTES
    for place in (8, footer + 24):
        struct.pack_into("<I", newer, place, 9)
    head = HEADER_BYTES - 4
    struct.pack_into("<I", newer, head, crc32c(bytes(newer[:head])))
    (index,) = struct.unpack_from("<Q", newer, footer)
    covered = bytes(newer[index : footer + 20])
    struct.pack_into("<I", newer, footer + 20, crc32c(covered, crc32c(bytes(newer[: head + 4]))))
    with pytest.raises(UnsupportedFormat, match="format version 9, this Tidelog reads 1"):
        check_bodies(key, newer)


@pytest.mark.parametrize("bit", range(32))
def test_a_damaged_version_is_a_damaged_object(bit: int) -> None:
    key, data = one_object()
    for place in (8, len(data) - FOOTER_BYTES + 24):
        damaged = bytearray(data)
        damaged[place + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject):
            check_bodies(key, damaged)


def test_a_reference_names_its_object_and_the_owner_of_the_batches() -> None:
    adoption = Adoption(12, 3, -1, LeaderEpoch(4))
    assert adoption.reference("staged/x") == "staged/x@12.3.-1.4"
    assert split_reference("staged/x@12.3.-1.4") == ("staged/x", adoption)
    assert split_reference("wal/0-1/2.wal") == ("wal/0-1/2.wal", None)
    with pytest.raises(CorruptObject, match="no reference"):
        split_reference("staged/x@1.2.three.4")


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_an_adopted_batch_is_stamped_when_it_is_read(codec: Compression) -> None:
    (batch,) = staging._encode([rows_of(b"a", b"b")], codec, 1 << 20)
    data = bytes(batch.header) + bytes(batch.records)
    latest = BatchHeader.parse(data).max_timestamp
    key, adoption = staged_key(UUID(int=1)), Adoption(12, 3, 9, LeaderEpoch(4))
    extent = Extent(100, 101, latest, key, 48, len(data), adoption=adoption)
    read = verify(extent, data).data
    header = BatchHeader.parse(read)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (100, 101, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (12, 3, -1)
    assert header.is_transactional
    assert [each.offset for each in decode_records(read)] == [100, 101]
    for wrong in (
        extent._replace(last_offset=102),
        extent._replace(max_timestamp=latest + 1),
        extent._replace(length=len(data) - 1),
    ):
        with pytest.raises(CorruptObject, match=key):
            verify(wrong, data[: wrong.length])
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 1
        with pytest.raises(CorruptObject, match=key):
            verify(extent, altered)
