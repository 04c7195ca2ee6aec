"""Builds and stores segments of a partition's records in the WAL, for the roller to commit.

If the process dies before a segment's put, nothing has happened. If it dies after the put, no table
lists the object, and the collector finds it. A put with a lost reply is repeated: no other put uses
the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidelog.broker.roll.agenda import RollTurns
from tidelog.broker.roll.metrics import RollMetrics
from tidelog.broker.roll.source import RollSource
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, MissingObject
from tidelog.records.row_columns import AbortedRange
from tidelog.storage.object_store import Buffer, ObjectStore, size_of
from tidelog.storage.segment.segment import Segment
from tidelog.storage.table.table_change import PartitionChange, TableAdvance
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.read.ordinals import OrdinalColumns
from tidelog.wal.roll.pace import SEGMENT_BYTES
from tidelog.wal.roll.segment_roll import RollProgress, SegmentRoll
from tidelog.workers.offload import Offload, RemoteObject, WorkerLost

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentBounds:
    """The sizes that end a segment, and the memory that building one takes."""

    raw_bytes_max: int = 256 * MIB
    """Bytes of keys, values and headers."""
    file_bytes_max: int = 16 * MIB
    """Bytes of the file, which memory holds whole until its put."""
    piece_bytes_max: int = 4 * MIB
    """Bytes of record batches that are read at a time; one extent may be larger."""
    piece_extents_max: int = 250
    """Extents that are read at a time, each perhaps by its own request.

    Describing an extent to another process costs the event loop some 3 µs.
    """


class SegmentBuilder:
    """Builds one segment at a time."""

    def __init__(
        self,
        source: RollSource,
        store: ObjectStore,
        rolling: Offload,
        entropy: Entropy,
        crash_points: CrashPoints,
        metrics: RollMetrics,
        bounds: SegmentBounds,
    ) -> None:
        """`rolling`: its worker is busy for tens of milliseconds at a time.

        If the worker is a process, `build` may raise WorkerLost.
        """
        self._source = source
        self._store = store
        self._rolling = rolling
        self._entropy = entropy
        self._crash_points = crash_points
        self._metrics = metrics
        self._bounds = bounds

    async def build(
        self, log: PartitionLog, upper: int, raw_bytes_max: int, turns: RollTurns
    ) -> PartitionChange | None:
        """Store a segment from the table's end on; return the change for the table's next commit.

        The segment reaches at most to `upper`, which must not be above the last stable offset.
        Without committed rows the change has no segment. The first piece begins at once; `turns`
        tell when each further one may begin. Returns None if `turns` say that the roll is no longer
        wanted.

        CorruptObject names the object that prevents the roll. MissingObject: the table may have its
        records already. StoreError: retry.
        """
        base = log.table_next
        offset = min(max(base, log.log_start), upper)
        raw_bytes_max = min(raw_bytes_max, self._bounds.raw_bytes_max)
        roll = await self._rolling.place(SegmentRoll, log.partition, offset, log.log_start)
        try:
            progress = RollProgress(offset, 0, 0, 0)
            pieces: list[Buffer] = []
            # Here as below: records below a risen log start have left the WAL.
            offset = min(max(offset, log.log_start), upper)
            while (
                offset < upper
                # If not, a reader has found that another broker rolled these records: the commit
                # would be refused (E1).
                and log.table_next == base
                and progress.raw_bytes < raw_bytes_max
                and progress.file_bytes < self._bounds.file_bytes_max
            ):
                taken = progress.wal_bytes
                progress = await self._add_piece(log, roll, offset, upper)
                self._metrics.wal_bytes += progress.wal_bytes - taken
                turns.note(progress.wal_bytes - taken)
                pieces += progress.pieces
                if progress.next_offset < upper and not await turns.next():
                    return None
                offset = min(max(progress.next_offset, log.log_start), upper)
            written = await roll.run(SegmentRoll.finish, offset, self._entropy.uuid())
        finally:
            roll.release()
        if written is not None:
            await self._store_segment(log, written.segment, (*pieces, *written.pieces))
        turns.note(SEGMENT_BYTES)
        return PartitionChange(
            partition=log.partition.partition,
            advance=TableAdvance(base, offset),
            appended=() if written is None else (written.segment,),
        )

    async def gather(self, logs: Iterable[PartitionLog]) -> None:
        """Read the records below the last stable offsets of small partitions together.

        The partitions are built one after the other. The bytes stay in memory until the next call,
        or until `release`.
        """
        wanted: list[Extent] = []
        for log in logs:
            start, upper = max(log.table_next, log.log_start), log.last_stable_offset
            wanted += (each for each in log.extents.from_offset(start) if each.base_offset < upper)
        await self._source.gather(wanted)

    def release(self) -> None:
        """Release the gathered bytes."""
        self._source.release()

    async def _add_piece(
        self, log: PartitionLog, roll: RemoteObject[SegmentRoll], offset: int, upper: int
    ) -> RollProgress:
        """Add one piece of the log. Damaged bytes are read once more, from the store."""
        extents = self._next_extents(log, offset, upper)
        end = min(upper, extents[-1].last_offset + 1)
        aborted = [AbortedRange._make(each[:3]) for each in log.aborted_between(offset, end)]
        read, try_add = self._source.read, SegmentRoll.try_add
        try:
            found = await roll.run(try_add, await read(extents), upper, aborted)
        except MissingObject:
            raise
        except CorruptObject:
            found = await roll.run(try_add, await read(extents, again=True), upper, aborted)
        if isinstance(found, RollProgress):
            return found
        ordinals = await self._source.ordinals(found.transactional)
        return await roll.run(SegmentRoll.add, upper, aborted, OrdinalColumns.of(ordinals))

    def _next_extents(self, log: PartitionLog, offset: int, upper: int) -> list[Extent]:
        """The extents of the next piece. Some may have moved since the last piece."""
        chosen: list[Extent] = []
        size = 0
        for extent in log.extents.from_offset(offset):
            if extent.base_offset >= upper:
                break
            if chosen and size + extent.length > self._bounds.piece_bytes_max:
                break
            if len(chosen) == self._bounds.piece_extents_max:
                break
            chosen.append(extent)
            size += extent.length
        assert chosen, f"{log.partition}: no extent holds offset {offset}"
        assert chosen[0].base_offset <= offset
        return chosen

    async def _store_segment(
        self, log: PartitionLog, segment: Segment, pieces: Sequence[Buffer]
    ) -> None:
        if size_of(pieces) != segment.size_bytes:
            # Another process made the pieces, and an incomplete segment must not enter a table.
            raise WorkerLost(
                f"{size_of(pieces)} of {segment.size_bytes} bytes of {segment.path} have come back"
            )
        self._crash_points.hit(CrashPoint.SEGMENT_READY)
        await self._store.put(segment.key(log.partition.topic_id), pieces)
        self._crash_points.hit(CrashPoint.SEGMENT_STORED)
        self._metrics.segments += 1
        self._metrics.segment_bytes += segment.size_bytes
        self._metrics.rows += segment.row_count
        self._metrics.raw_bytes += segment.raw_bytes
