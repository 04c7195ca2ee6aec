"""Any records that were produced, rolled into segments and fetched equal the committed ones."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.records.logs import Log, Row, codecs, logs, row
from tests.unit.broker.cold_log import PARTITION, TOPIC_ID, ColdLog
from tidelog.broker.read.segments import chunk
from tidelog.identifiers import LeaderEpoch
from tidelog.records.compression import Compression
from tidelog.records.records import Record
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.records.validate.rules import BatchLimits
from tidelog.storage.segment import segment_writer
from tidelog.storage.segment.segment_writer import SegmentWriter
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.partition_log import PartitionLog

PRODUCERS = {"producer_id": None, "producer_epoch": None, "transaction": None}


async def rolled(log: Log, cuts: list[int], limits: BatchLimits, read_cache_bytes: int) -> ColdLog:
    """Roll the whole log into segments that end at these offsets. Some segments may have no row."""
    cold = ColdLog(limits=limits, read_cache_bytes=read_cache_bytes)
    rows = list(decode_rows(log.buffer, aborted=log.aborted))
    end = max(log.next_offset, 1)
    bounds = sorted({0, end, *(min(cut, end) for cut in cuts)})
    for base, following in pairwise(bounds):
        writer = SegmentWriter(PARTITION, base)
        for batch in rows:
            chosen = [base <= offset.as_py() < following for offset in batch.column("offset")]
            writer.write(batch.filter(pa.array(chosen, pa.bool_())))
        if not writer.row_count:
            await cold.commit(following)
            continue
        written = writer.finish(following, cold.entropy.uuid())
        await cold.memory.put(written.segment.key(TOPIC_ID), written.pieces)
        await cold.commit(following, written.segment)
    image = PartitionImage(
        partition=PARTITION,
        leader_epoch=LeaderEpoch(7),
        next_offset=end,
        log_start=0,
        table_next=end,
        leader_epochs=(EpochStart(LeaderEpoch(2), 0), EpochStart(LeaderEpoch(7), end // 2 + 1)),
        producers=(),
        has_forgotten_producers=False,
        aborted=(),
        extents=cold.log.extents,
    )
    cold.partition.log = PartitionLog.from_image(image)
    return cold


def seen(record: Record) -> Row:
    return row(record, (-1, -1, -1))


@given(
    log=logs(),
    cuts=st.lists(st.integers(0, 2**41) | st.integers(0, 300), max_size=4),
    codec=codecs,
    committed=st.booleans(),
    group_rows=st.sampled_from([2, 50, 1 << 16]),
    batch_bytes=st.sampled_from([1, 500, 256 * 1024]),
    # Each fetch reads records that the cache does not keep again, so small caches need larger
    # fetches.
    limits=st.sampled_from([(1, 1 << 26), (2000, 1 << 26), (20_000, 3000), (1 << 20, 0)]),
)
def test_a_consumer_gets_exactly_the_committed_records_as_they_were(
    log: Log,
    cuts: list[int],
    codec: Compression,
    committed: bool,
    group_rows: int,
    batch_bytes: int,
    limits: tuple[int, int],
) -> None:
    bytes_max, read_cache_bytes = limits

    async def story() -> None:
        cold = await rolled(log, cuts, BatchLimits(compression=codec), read_cache_bytes)
        found = await cold.consume(0, bytes_max=bytes_max, committed=committed)
        assert [seen(record) for record in found] == [each | PRODUCERS for each in log.expected]
        await cold.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "ROW_GROUP_ROWS", group_rows)
        patch.setattr(chunk, "BATCH_BYTES", batch_bytes)
        asyncio.run(story())
