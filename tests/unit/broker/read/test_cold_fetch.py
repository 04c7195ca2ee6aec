"""Fetches of records in segments: which records are returned, and in which batches."""

from __future__ import annotations

import pytest

from tests.unit.broker.cold_log import MIB, TOPIC_ID, ColdLog, headers_in, received
from tests.unit.broker.read.cold_reads import batch, log_of, merged, offsets, run
from tidelog.broker.read.fetch_session import FetchTarget
from tidelog.broker.read.fetcher import FetchLimits, Isolation
from tidelog.broker.read.segments.chunk import BATCH_BYTES
from tidelog.identifiers import LeaderEpoch
from tidelog.records.batch import TimestampType
from tidelog.records.compression import Compression
from tidelog.records.control import MarkerType, control_batch
from tidelog.records.row_columns import AbortedRange
from tidelog.records.validate.rules import BatchLimits
from tidelog.storage.segment import segment_writer

STAMP = 1_700_000_000_000
INSIDE = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
"""The batches of one producer's transactions."""


def marker(kind: MarkerType, offset: int) -> bytes:
    """The end of that producer's transaction."""
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


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a hundred rows."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 100)


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


def test_an_answer_names_the_aborted_transactions_of_its_own_records_alone() -> None:
    async def story() -> None:
        batches, aborted = [], []
        for base in range(0, 600, 3):
            batches += [batch(base, 2, **INSIDE), marker(MarkerType.ABORT, base + 2)]
            aborted.append(AbortedRange(5, base, base + 2))
        cold = await ColdLog(batches, aborted=aborted).write()
        read = await cold.fetch(300, bytes_max=1000, committed=True)
        end = read.found.next_offset
        assert 303 < end < 400
        named = [(each.first_offset, each.last_offset) for each in read.aborted or ()]
        assert named == [(base, base + 2) for base in range(300, end, 3)]

    run(story())


def test_markers_and_aborted_records_are_passed_also_at_the_tables_end() -> None:
    async def story() -> None:
        batches = [
            batch(0, 5, base_sequence=0, **INSIDE),
            marker(MarkerType.COMMIT, 5),
            batch(6, 4),
            batch(10, 20, base_sequence=5, **INSIDE),
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
        # Only the table covers a range without rows: [10, 31) here, and the range at its end.
        cold = await ColdLog(batches, aborted=aborted).write()
        await cold.roll(10)
        assert await cold.roll(31) is None
        read = await cold.fetch(10, committed=True)
        gap = headers_in(read)[0]
        assert (gap.base_offset, gap.last_offset, gap.record_count) == (10, 30, 0)
        assert read.aborted == []
        assert offsets(await cold.consume(12)) == [31, 32]

    run(story())


def test_an_abort_within_segments_hides_no_later_transaction_where_the_log_lags_the_table() -> None:
    """A segment has no markers. A client would skip the producer's records up to a marker."""

    async def story() -> None:
        batches = [
            batch(0, 5),
            batch(5, 5, base_sequence=0, **INSIDE),
            marker(MarkerType.ABORT, 10),
            batch(11, 2),
            batch(13, 3, base_sequence=5, **INSIDE),
            marker(MarkerType.COMMIT, 16),
            batch(17, 2, base_sequence=8, **INSIDE),
            marker(MarkerType.ABORT, 19),
        ]
        aborted = [AbortedRange(5, 5, 10), AbortedRange(5, 17, 19)]
        cold = await ColdLog(batches, aborted=aborted).write()
        first = await cold.roll(5)
        # Another broker rolls and merges: the log still says that the table ends at 5.
        second = await cold.put_segment(b"".join(cold.batches[1:4]), 5, 13)
        assert second is not None
        await cold.commit(13, second)
        await merged(cold, [first, second], 13)
        # With all extents in memory, one answer continues from the segment into the WAL.
        await cold.fetch(13)
        await cold.fetch(0)
        read = await cold.fetch(0, committed=True)
        assert offsets(received(read, 0)[0]) == [0, 1, 2, 3, 4, 11, 12, 13, 14, 15]
        assert [(each.first_offset, each.last_offset) for each in read.aborted or ()] == [(17, 19)]
        for start in range(20):
            found = offsets(await cold.consume(start))
            assert found == [each for each in (*range(5), *range(11, 16)) if each >= start]

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


def test_a_range_without_records_tells_each_leader_epoch_that_wrote_its_offsets() -> None:
    """A client takes a position that lies behind the end of its leader epoch for truncated."""

    async def story() -> None:
        epochs = ((0, 0), (2, 15), (5, 20))
        aborted = [AbortedRange(5, 10, 30)]
        batches = [
            batch(0),
            batch(10, 5, base_sequence=0, **INSIDE),
            batch(15, 5, base_sequence=5, **INSIDE),
            batch(20, 10, base_sequence=10, **INSIDE),
            marker(MarkerType.ABORT, 30),
            batch(31, 2),
        ]
        cold = await ColdLog(batches, epochs=epochs, aborted=aborted).write()
        await cold.roll(10)
        assert await cold.roll(31) is None
        for start in (10, 16):
            gap = [each for each in headers_in(await cold.fetch(start)) if each.base_offset < 31]
            for header in gap:
                epoch, end = cold.log.end_offset_for_epoch(LeaderEpoch(header.leader_epoch))
                assert (epoch, header.record_count) == (header.leader_epoch, 0)
                assert header.last_offset < end
            assert gap[-1].last_offset == 30
        assert offsets(await cold.consume(10)) == [31, 32]

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


def test_times_set_by_the_broker_stay_log_append_times() -> None:
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
        # The limit is less than a batch, but one batch is returned.
        read = await cold.fetch(0, bytes_max=1)
        assert len(headers_in(read)) == 1
        assert offsets(await cold.consume(bytes_max=1)) == list(range(3000))

    run(story())


def test_only_the_first_of_several_partitions_gets_more_than_its_limit() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(3000, size=1000)).write()
        await cold.roll(3000)
        # Two readers of the segment in one request stand for two partitions.
        reads = await cold.fetcher.fetch(
            [FetchTarget((TOPIC_ID, 0), offset, 10) for offset in (0, 1500)],
            lambda _: cold.partition,
            Isolation.READ_COMMITTED,
            FetchLimits(1, 10, 0),
        )
        assert [bool(read.found.buffers) for read in reads] == [True, False]

    run(story())
