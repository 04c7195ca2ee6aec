"""Fetches of what lies in segments: which records come, what it costs, what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

import pytest

from tests.unit.broker.cold_log import MIB, TOPIC_ID, WAL_KEY, ColdLog, headers_in, received
from tests.unit.broker.stored_log import settle
from tidelog.broker.read.chunk import BATCH_BYTES
from tidelog.broker.read.fetch_session import FetchTarget
from tidelog.broker.read.fetcher import FetchLimits, Isolation, PartitionRead
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import TimestampType
from tidelog.records.compression import Compression
from tidelog.records.control import MarkerType, control_batch
from tidelog.records.records import NewRecord, Record, encode_batch
from tidelog.records.row_columns import AbortedRange
from tidelog.records.validate.rules import BatchLimits
from tidelog.storage.object_store import (
    ByteRange,
    ObjectStore,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.segment import segment_writer
from tidelog.storage.segment.segment import Segment
from tidelog.storage.stores.memory import MemoryStore

KIB = 1024
STAMP = 1_700_000_000_000


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(bounded())


def batch(base: int, count: int = 10, size: int = 20, **options: object) -> bytearray:
    """Records whose values tell their offsets, dated by them."""
    records = [
        NewRecord((b"%d " % offset * size)[:size], b"k%d" % offset, (), STAMP + offset)
        for offset in range(base, base + count)
    ]
    return encode_batch(records, base_offset=base, **options)  # type: ignore[arg-type]


def log_of(count: int, *, batch_records: int = 10, size: int = 20) -> list[bytearray]:
    return [batch(base, batch_records, size) for base in range(0, count, batch_records)]


def offsets(records: Sequence[Record]) -> list[int]:
    return [record.offset for record in records]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a hundred rows."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 100)


@pytest.fixture
def groups_of_a_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a MiB, four batches."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_BYTES", MIB)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.usefixtures("small_groups")
def test_a_consumer_goes_from_segments_into_the_wal_without_gap_or_repetition(
    committed: bool,
) -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(1000)).write()
        await cold.roll(300)
        await cold.roll(650)
        for start in (0, 1, 299, 300, 649, 650, 999):
            found = await cold.consume(start, committed=committed)
            assert offsets(found) == list(range(start, 1000))
            assert {each.value for each in found} == {
                (b"%d " % offset * 20)[:20] for offset in range(start, 1000)
            }
            assert [each.timestamp for each in found] == [STAMP + each.offset for each in found]

    run(story())


def test_one_fetch_crosses_from_segments_into_the_wal() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(60)
        await cold.fetch(60)
        await cold.fetch(0)
        records, following = received(await cold.fetch(0), 0)
        assert (offsets(records), following) == (list(range(100)), 100)

    run(story())


def test_markers_and_aborted_records_are_passed_also_at_the_tables_end() -> None:
    def marker(kind: MarkerType, offset: int) -> bytes:
        return bytes(
            control_batch(
                kind,
                producer_id=5,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=STAMP,
                base_offset=offset,
            )
        )

    async def story() -> None:
        inside = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
        batches = [
            batch(0, 5, base_sequence=0, **inside),
            marker(MarkerType.COMMIT, 5),
            batch(6, 4),
            batch(10, 20, base_sequence=5, **inside),
            marker(MarkerType.ABORT, 30),
            batch(31, 2),
        ]
        aborted = [AbortedRange(5, 10, 30)]
        expected = [*range(5), *range(6, 10), 31, 32]
        for ends in ([31], [10, 31], [6, 10, 31], [33], [6, 33]):
            cold = await ColdLog(batches, aborted=aborted).write()
            for end in ends:
                await cold.roll(end)
            for start in range(33):
                found = offsets(await cold.consume(start))
                assert found == [offset for offset in expected if offset >= start]
        # A range without a row is in the table alone: [10, 31) here, and at its end.
        cold = await ColdLog(batches, aborted=aborted).write()
        await cold.roll(10)
        assert await cold.roll(31) is None
        read = await cold.fetch(10, committed=True)
        gap = headers_in(read)[0]
        assert (gap.base_offset, gap.last_offset, gap.record_count) == (10, 30, 0)
        assert read.aborted == []
        assert offsets(await cold.consume(12)) == [31, 32]

    run(story())


def test_batches_tell_the_leader_epoch_that_wrote_their_offsets() -> None:
    async def story() -> None:
        epochs = [(0, 0), (3, 25), (4, 40), (9, 300)]
        cold = await ColdLog(log_of(400), epochs=epochs).write()
        await cold.roll(350)
        seen: dict[int, int] = {}
        for header in headers_in(await cold.fetch(0)):
            for offset in range(header.base_offset, header.last_offset + 1):
                seen[offset] = header.leader_epoch
        assert [seen[offset] for offset in (0, 24, 25, 39, 40, 299, 300, 349)] == [
            *(0, 0, 3, 3, 4, 4, 9, 9)
        ]

    run(story())


@pytest.mark.parametrize("codec", Compression)
def test_batches_are_served_in_the_topics_codec(codec: Compression) -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(300, size=200), limits=BatchLimits(compression=codec)).write()
        await cold.roll(300)
        read = await cold.fetch(0)
        assert {header.compression for header in headers_in(read)} == {codec}
        assert offsets(received(read, 0)[0]) == list(range(300))
        assert (len(b"".join(read.found.buffers)) < 30_000) is (codec is not Compression.NONE)

    run(story())


def test_a_topic_without_a_codec_of_its_own_is_served_uncompressed() -> None:
    async def story() -> None:
        cold = await ColdLog([batch(0, compression=Compression.ZSTD)]).write()
        await cold.roll(10)
        (header,) = headers_in(await cold.fetch(0))
        assert header.compression is Compression.NONE

    run(story())


def test_times_set_by_the_broker_stay_that() -> None:
    async def story() -> None:
        by_broker = batch(0, 10, timestamp_type=TimestampType.LOG_APPEND_TIME)
        cold = await ColdLog([by_broker, batch(10)]).write()
        before = await cold.consume()
        await cold.roll(20)
        assert await cold.consume() == before

    run(story())


def test_the_limits_of_a_fetch_hold_but_it_always_goes_on() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(3000, size=1000)).write()
        await cold.roll(3000)
        read = await cold.fetch(0, bytes_max=MIB)
        assert MIB - BATCH_BYTES - 100 <= read.found.size_bytes <= MIB
        assert read.found.is_cut
        assert read.available_bytes == MIB
        # Less than a batch: one comes all the same.
        read = await cold.fetch(0, bytes_max=1)
        assert len(headers_in(read)) == 1
        assert offsets(await cold.consume(bytes_max=1)) == list(range(3000))

    run(story())


def test_of_several_partitions_only_the_first_gets_more_than_its_limit() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(3000, size=1000)).write()
        await cold.roll(3000)
        # Two readers of it in one request stand for two partitions.
        reads = await cold.fetcher.fetch(
            [FetchTarget((TOPIC_ID, 0), offset, 10) for offset in (0, 1500)],
            lambda _: cold.partition,
            Isolation.READ_COMMITTED,
            FetchLimits(1, 10, 0),
        )
        assert [bool(read.found.buffers) for read in reads] == [True, False]

    run(story())


# What it costs.


def test_the_first_byte_costs_one_range_read_with_metadata_and_two_without() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(1000, size=5000)).write()
        await cold.roll(1000)
        before = cold.requests
        read = await cold.fetch(0)
        assert read.found.buffers
        assert cold.requests - before == 2
        before = cold.requests
        read = await cold.fetch(900)
        assert read.found.buffers
        assert cold.requests - before == 1
        before = cold.requests
        await cold.fetch(901)
        assert cold.requests - before == 0

    run(story())


class SlowStore:
    """Another store whose ranges wait for `open`, are counted, and fail while it `is_broken`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.open = asyncio.Event()
        self.open.set()
        self.is_broken = False
        self.gets = 0
        self.given_up = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        self.gets += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.is_broken:
            raise StoreNotApplied(key, "the store is away")
        return await self._store.get(key, byte_range)


async def slow_log(count: int, size: int, **options: int) -> tuple[ColdLog, SlowStore]:
    """A log that lies in one segment of a slow store, with its footer in memory."""
    cold = ColdLog(log_of(count, size=size), **options)  # type: ignore[arg-type]
    slow = SlowStore(cold.memory)
    cold.store._store = slow  # type: ignore[attr-defined]
    await cold.write()
    segment = await cold.roll(count)
    assert segment is not None
    await cold.indexes.open(cold.log.partition, segment)
    slow.gets = 0
    return cold, slow


def test_readers_of_the_same_records_share_one_read_and_one_encoding() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.open.clear()
        readers = [asyncio.create_task(cold.fetch(0)) for _ in range(5)]
        await settle()
        slow.open.set()
        answers = await asyncio.gather(*readers)
        assert [offsets(received(read, 0)[0]) for read in answers] == [list(range(100))] * 5
        assert (slow.gets, cold.chunks.encoded, cold.chunks.joined) == (1, 1, 4)

    run(story())


def test_a_read_that_nobody_waits_for_any_more_is_given_up_and_begun_again() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.open.clear()
        leaving, staying = (asyncio.create_task(cold.fetch(0)) for _ in range(2))
        await settle()
        leaving.cancel()
        await settle()
        assert slow.given_up == 0
        staying.cancel()
        await settle()
        assert slow.given_up == 1
        again = asyncio.create_task(cold.fetch(0))
        await settle()
        slow.open.set()
        assert offsets(received(await again, 0)[0]) == list(range(100))

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_a_sequential_reader_is_read_ahead_of_in_few_and_growing_ranges() -> None:
    async def story() -> None:
        # 10 MB in about ten row groups.
        cold, slow = await slow_log(2000, 5000)
        offset = 0
        while offset < 2000:
            read = await cold.fetch(offset, bytes_max=MIB // 4)
            _, offset = received(read, offset)
            await settle()
        groups = cold.chunks.encoded
        assert groups >= 9
        assert slow.gets < groups / 1.5
        assert cold.read_memory.wasted_bytes == 0

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_a_reader_in_leaps_is_not_read_ahead_of() -> None:
    async def story() -> None:
        cold, slow = await slow_log(2000, 5000)
        for offset in (1900, 100, 1500, 800):
            await cold.fetch(offset, bytes_max=MIB // 4)
            await settle()
        assert slow.gets == cold.chunks.encoded == 4

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_several_readers_of_a_partition_cost_what_one_costs() -> None:
    async def story() -> None:
        cold, slow = await slow_log(1000, 5000)
        groups = -(-1000 * 5000 // MIB)
        found = await asyncio.gather(*(cold.consume() for _ in range(4)))
        assert all(offsets(records) == list(range(1000)) for records in found)
        assert cold.chunks.encoded <= groups + 1
        assert slow.gets <= groups + 1

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_what_is_kept_stays_within_the_memory_for_it() -> None:
    async def story() -> None:
        cold, _ = await slow_log(2000, 5000, read_cache_bytes=3 * MIB)
        offset = 0
        while offset < 2000:
            _, offset = received(await cold.fetch(offset, bytes_max=MIB // 4), offset)
            assert cold.read_memory.size_bytes <= 3 * MIB
            assert cold.read_memory.ahead_bytes <= 3 * MIB // 2

    run(story())


def test_without_memory_for_what_is_read_all_is_served_and_nothing_kept() -> None:
    async def story() -> None:
        cold, _ = await slow_log(100, 100, read_cache_bytes=0, index_cache_bytes=0)
        assert offsets(await cold.consume()) == list(range(100))
        assert (cold.read_memory.size_bytes, cold.indexes.size_bytes) == (0, 0)

    run(story())


# What changes under a reader.


async def merged(cold: ColdLog, segments: Sequence[Segment | None], next_offset: int) -> Segment:
    """One segment in the place of some, whose objects are then deleted."""
    old = [segment for segment in segments if segment is not None]
    base = old[0].name.base_offset
    chosen = [data for data in cold.batches if base <= int.from_bytes(data[:8], "big")]
    chosen = [data for data in chosen if int.from_bytes(data[:8], "big") < next_offset]
    new = await cold.put_segment(b"".join(chosen), base, next_offset)
    assert new is not None
    await cold.replace(old, new)
    for segment in old:
        await cold.memory.delete(segment.key(TOPIC_ID))
    return new


@pytest.mark.parametrize("footers_known", [False, True])
def test_segments_compacted_and_collected_under_a_reader_are_no_matter(footers_known: bool) -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        two = await ColdLog(log_of(100)).write()
        segments = [await two.roll(30), await two.roll(60)]
        if footers_known:
            for segment in segments:
                assert segment is not None
                await two.indexes.open(two.log.partition, segment)
        del cold, slow
        # The reader has looked into the table and waits for the store when it changes.
        slow = SlowStore(two.memory)
        two.store._store = slow  # type: ignore[attr-defined]
        slow.open.clear()
        reader = asyncio.create_task(two.fetch(0))
        await settle()
        assert slow.gets == 1
        other = ColdLogView(two)
        await other.merge(segments, 60)
        slow.open.set()
        records, _ = received(await reader, 0)
        assert records
        assert offsets(await two.consume()) == list(range(100))

    run(story())


class ColdLogView:
    """Another process that changes the same table."""

    def __init__(self, cold: ColdLog) -> None:
        self.cold = ColdLog(cold.batches)
        self.cold.memory = cold.memory
        self.cold.store._store = cold.memory  # type: ignore[attr-defined]

    async def merge(self, segments: Sequence[Segment | None], next_offset: int) -> None:
        await self.cold.tables.open(TOPIC_ID)
        await merged(self.cold, segments, next_offset)


def test_the_table_may_roll_on_while_a_fetch_waits_for_the_wal() -> None:
    async def story() -> None:
        cold = ColdLog(log_of(100))
        slow = SlowStore(cold.memory)
        cold.store._store = slow  # type: ignore[attr-defined]
        await cold.write()
        await cold.roll(30)
        slow.open.clear()
        reader = asyncio.create_task(cold.fetch(50))
        await settle()
        slow.open.set()
        await cold.roll(100)
        records, _ = received(await reader, 50)
        assert offsets(records) == list(range(50, 100))

    run(story())


def test_a_log_start_that_passes_a_reader_is_told_to_it() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.open.clear()
        reader = asyncio.create_task(cold.fetch(10))
        await settle()
        cold.log._show_log_start(50)
        slow.open.set()
        assert (await reader).code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert offsets(await cold.consume(50)) == list(range(50, 100))

    run(story())


def test_a_table_that_others_have_rolled_on_is_read_again() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        other = ColdLogView(cold).cold
        await other.tables.open(TOPIC_ID)
        segment = await other.put_segment(b"".join(other.batches[3:7]), 30, 70)
        assert segment is not None
        await other.commit(70, segment)
        # As its own log has it: from an image that another broker wrote.
        cold.log.advance_table(70)
        assert offsets(await cold.consume()) == list(range(100))

    run(story())


def test_wal_objects_collected_since_another_broker_rolled_them_are_looked_for_in_the_table() -> (
    None
):
    async def story() -> None:
        # Its own log knows nothing of the roll: a fenced broker committed it late.
        cold = await ColdLog(log_of(100)).write()
        other = ColdLogView(cold).cold
        await other.roll(100)
        await cold.memory.delete(WAL_KEY)
        assert await cold.lookup.of_maximum(cold.partition, 100) == (STAMP + 99, 99)
        cold.partition.log = (await ColdLog(log_of(100)).write()).log
        assert offsets(await cold.consume()) == list(range(100))
        assert cold.log.table_next == 100

    run(story())


def test_a_wal_object_that_is_missing_and_in_no_table_is_corruption() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        await cold.memory.delete(WAL_KEY)
        await refused(cold, 50)
        assert offsets(received(await cold.fetch(0), 0)[0]) == list(range(30))
        with pytest.raises(CorruptObject, match="missing"):
            await cold.lookup.of_maximum(cold.partition, 100)

    run(story())


# What goes wrong.


async def refused(cold: ColdLog, offset: int = 0) -> PartitionRead:
    read = await cold.fetch(offset)
    assert read.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not read.found.buffers
    return read


async def damaged(store: MemoryStore, key: str, how: str) -> None:
    data = bytearray((await store.get(key)).data)
    match how:
        case "missing":
            await store.delete(key)
            return
        case "truncated":
            del data[len(data) // 2 :]
        case "longer":
            data += b"x"
        case "altered data":
            data[100] ^= 1
        case _:
            data[-60] ^= 1
    await store.put(key, bytes(data))


@pytest.mark.parametrize(
    ("how", "footers_known"),
    [
        *(
            (how, known)
            for how in ("missing", "truncated", "longer", "altered data")
            for known in (False, True)
        ),
        # Where the footer is known it is not read again.
        ("altered footer", False),
    ],
)
def test_a_damaged_segment_fails_its_own_records_and_is_named(
    how: str, footers_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        first, second = await cold.roll(30), await cold.roll(60)
        assert first is not None
        assert second is not None
        if footers_known:
            await cold.indexes.open(cold.log.partition, second)
        key = second.key(TOPIC_ID)
        whole = bytes((await cold.memory.get(key)).data)
        await damaged(cold.memory, key, how)
        await refused(cold, 30)
        assert any(getattr(each, "key", None) == key for each in caplog.records)
        # What lies before and behind it goes on, and a fetch that runs into it ends before it.
        assert offsets(received(await cold.fetch(0), 0)[0]) == list(range(30))
        assert offsets(await cold.consume(60)) == list(range(60, 100))
        # Nothing wrong is kept: what is right again is served.
        await cold.memory.put(key, whole)
        assert offsets(await cold.consume()) == list(range(100))

    run(story())


@pytest.mark.parametrize("how", ["missing", "truncated", "altered data"])
def test_a_damaged_table_log_fails_what_is_in_the_table_alone(how: str) -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        await cold.roll(60)
        prefix = f"topics/{TOPIC_ID}/_delta_log/"
        await damaged(cold.memory, f"{prefix}{0:020d}.json", how)
        fresh = ColdLogView(cold).cold
        fresh.log.advance_table(60)
        await refused(fresh, 30)
        assert offsets(await fresh.consume(60)) == list(range(60, 100))

    run(story())


def test_a_table_that_ends_below_what_its_log_says_is_corrupt() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        cold.log.advance_table(60)
        await refused(cold, 10)
        await refused(cold, 40)
        assert offsets(await cold.consume(60)) == list(range(60, 100))

    run(story())


def test_a_store_that_is_away_is_an_error_until_it_is_back() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.is_broken = True
        await refused(cold)
        slow.is_broken = False
        assert offsets(await cold.consume()) == list(range(100))

    run(story())
