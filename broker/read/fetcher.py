"""Serves fetches: durable and visible records, at once or after a wait, within the limits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.partitions.partitions import Partition, PartitionError, Waiter, WaitQueue
from tidelog.broker.read.fetch_session import FetchTarget
from tidelog.broker.read.tiers import (
    Loaded,
    LogPiece,
    LogRange,
    LogSlice,
    ReadAhead,
    TieredLog,
    interleaved,
)
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.clock import Clock
from tidelog.errors import TidelogError
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.records.validate.rules import BatchLimits
from tidelog.wal.log.transactions import AbortedIndexEntry

LOAD_ROUNDS_MAX = 64
"""Reads from the store for one fetch; then the answer is cut short, never wrong."""
LOAD_BYTES_WANTED = 8 * 1024 * 1024
LOAD_OBJECTS_MAX = 32
"""Bytes that one fetch loads at a time beyond the indispensable ones.

They are enough that the answer is worth its price, and few enough that the client waits little.
"""
READERS_REMEMBERED_MAX = 10_000
SLICE_PARTITIONS = 128
"""Partitions that a fetch reads before other tasks get a turn."""


class Isolation(IntEnum):
    """The visibility of records for a reader (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(slots=True)
class FetchLimits:
    """The client's limits on one answer and on its wait."""

    bytes_min: int
    bytes_max: int
    wait_ms_max: int


@dataclass(slots=True)
class PartitionRead:
    """The answer for one partition. Offsets are -1 with an error."""

    target: FetchTarget
    code: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    aborted: Sequence[AbortedIndexEntry] | None = None
    found: LogSlice = field(default_factory=LogSlice)
    available_bytes: int = 0
    """The available bytes within the limits; as in Kafka, a batch that they cut counts too."""
    leader_epoch: int = -1
    following: LogRange | None = None
    """The position after `found`, as far as the answer has room."""


class Fetcher:
    """Reads many partitions for one request. `find` returns a target's partition or raises."""

    def __init__(
        self,
        log: TieredLog,
        clock: Clock,
        may_serve: Callable[[], bool],
        faults: FaultLog,
        answers: AnswerMemory,
        turns: SliceTurns,
    ) -> None:
        """`answers`: how large they may be."""
        self._turns = turns
        self._log = log
        self._clock = clock
        self._faults = faults
        self._may_serve = may_serve
        self._answers = answers
        self._parked: dict[Waiter, None] = {}
        # The next offsets of sequential readers, with the bytes that they took so far. Oldest
        # first; forgotten ones are not read ahead.
        self._next_offsets: dict[tuple[TopicPartition, int], int] = {}
        self._is_closed = False

    def close(self) -> None:
        """Stop long polling and answer every parked fetch now."""
        self._is_closed = True
        for waiter in self._parked:
            waiter.wake()

    async def fetch(
        self,
        targets: Sequence[FetchTarget],
        find: Callable[[FetchTarget], Partition],
        isolation: Isolation,
        limits: FetchLimits,
    ) -> list[PartitionRead]:
        """One answer for each target, in order. Waits for as much as the client wants."""
        deadline = self._clock.monotonic() + limits.wait_ms_max / 1000
        # Parked before the first read, so that no record arrives unseen between read and wait.
        queues = await self._turns.list_of(_queues(targets, find), SLICE_PARTITIONS)
        with Waiter(queues) as waiter, self._parking(waiter):
            while True:
                bytes_max = min(limits.bytes_max, self._answers.answer_bytes_max)
                # A wait for more than the answer may hold would never end.
                bytes_min = min(limits.bytes_min, bytes_max)
                reads = await self._read(targets, find, isolation, bytes_min, bytes_max)
                remaining = deadline - self._clock.monotonic()
                if _enough(reads, bytes_min) or remaining <= 0 or self._is_closed:
                    break
                has_records = any(read.found.size_bytes for read in reads)
                if has_records:
                    # No limit counts what a parked fetch holds, and its reader may lose the right
                    # to read. So it reads again before it is answered.
                    del reads
                if not await waiter.wait(remaining) and not has_records:
                    break
        self._read_ahead(reads)
        return reads

    @contextlib.contextmanager
    def _parking(self, waiter: Waiter) -> Iterator[None]:
        self._parked[waiter] = None
        try:
            yield
        finally:
            del self._parked[waiter]

    async def _read(
        self,
        targets: Sequence[FetchTarget],
        find: Callable[[FetchTarget], Partition],
        isolation: Isolation,
        bytes_min: int,
        bytes_max: int,
    ) -> list[PartitionRead]:
        loaded: Loaded = {}
        # Loaded bytes are held until the answer is complete, so they are limited like the answer.
        loadable_bytes = max(bytes_max, 1)
        for _ in range(LOAD_ROUNDS_MAX):
            reading = self._read_loaded(targets, find, isolation, bytes_max, loaded)
            reads = await self._turns.list_of(reading, SLICE_PARTITIONS)
            missing = self._to_load(reads, bytes_min, loadable_bytes)
            if not missing:
                break
            loadable_bytes -= sum(piece.length for piece in missing)
            loaded = await self._log.load(missing, loaded)
        return reads

    def _read_ahead(self, reads: Sequence[PartitionRead]) -> None:
        """Begin to read the next records of sequential readers, while the answer is on its way."""
        sequential = []
        for read in reads:
            following = read.following
            if following is None or not read.found.buffers:
                continue
            partition, answered_bytes = following.log.partition, read.found.size_bytes
            taken = self._next_offsets.get((partition, read.target.fetch_offset))
            taken_bytes = (taken or 0) + answered_bytes
            self._remember(partition, following.offset, taken_bytes)
            if taken is not None:
                wanted = following._replace(bytes_max=read.target.bytes_max)
                sequential.append(ReadAhead(wanted, answered_bytes, taken_bytes))
        self._log.read_ahead(sequential)

    def _to_load(
        self, reads: Sequence[PartitionRead], bytes_min: int, loadable_bytes: int
    ) -> list[LogPiece]:
        """The parts to load.

        A partition without found records loads its next part. Others load while there is less than
        the client wants. So a partition whose records are not in memory is not passed over. If the
        client has to wait anyway, more parts are loaded too, in turn of partitions.
        """
        is_enough = sum(read.available_bytes for read in reads) >= bytes_min
        chosen: dict[LogPiece, None] = {}
        for read in reads:
            piece = read.found.missing
            if piece is None or (is_enough and read.found.buffers) or loadable_bytes <= 0:
                continue
            loadable_bytes -= piece.length
            chosen[piece] = None
        if not chosen:
            return []
        room = min(loadable_bytes, LOAD_BYTES_WANTED - sum(piece.length for piece in chosen))
        objects = {piece.key for piece in chosen}
        lacking = [
            self._log.lacking(read.following)
            for read in reads
            if read.following is not None and read.found.missing is not None
        ]
        for piece in interleaved(lacking):
            if piece not in chosen:
                room -= piece.length
                objects.add(piece.key)
                if room < 0 or len(objects) > LOAD_OBJECTS_MAX:
                    break
                chosen[piece] = None
        return list(chosen)

    def _remember(self, partition: TopicPartition, next_offset: int, taken_bytes: int) -> None:
        if len(self._next_offsets) >= READERS_REMEMBERED_MAX:
            del self._next_offsets[next(iter(self._next_offsets))]
        self._next_offsets[(partition, next_offset)] = taken_bytes

    def _read_loaded(
        self,
        targets: Sequence[FetchTarget],
        find: Callable[[FetchTarget], Partition],
        isolation: Isolation,
        bytes_max: int,
        loaded: Loaded,
    ) -> Iterator[PartitionRead]:
        """Read without waiting; parts that must be loaded first are named in `missing`."""
        room = bytes_max
        serves = False
        for number, target in enumerate(targets):
            if number % SLICE_PARTITIONS == 0:
                serves = self._may_serve()
            read = PartitionRead(target)
            if not serves:
                read.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                yield read
                continue
            try:
                partition = find(target)
            except PartitionError as error:
                read.code = error.code
                yield read
                continue
            self._read_partition(partition, read, isolation, room, room == bytes_max, loaded)
            room -= read.found.size_bytes
            yield read

    def _read_partition(
        self,
        partition: Partition,
        read: PartitionRead,
        isolation: Isolation,
        room: int,
        at_least_one: bool,
        loaded: Loaded,
    ) -> None:
        log, target = partition.log, read.target
        read.code = epoch_error(target.current_leader_epoch, log.leader_epoch)
        if read.code is not ErrorCode.NONE:
            return
        read.leader_epoch = log.leader_epoch
        if not partition.first_offset <= target.fetch_offset <= log.next_offset:
            read.code = ErrorCode.OFFSET_OUT_OF_RANGE
            return
        read.high_watermark = log.high_watermark
        read.last_stable_offset = log.last_stable_offset
        read.log_start = partition.first_offset
        committed = isolation is Isolation.READ_COMMITTED
        upper = log.last_stable_offset if committed else log.high_watermark
        if (room > 0 or at_least_one) and target.fetch_offset < upper:
            bytes_max = min(room, target.bytes_max)
            codec = served_codec(partition.limits)
            wanted = LogRange(log, codec, target.fetch_offset, upper, bytes_max)
            try:
                found = self._log.slice(wanted, at_least_one=at_least_one, loaded=loaded)
            except TidelogError as error:
                self._faults.met("a fetch cannot be served", str(partition), error)
                read.code = ErrorCode.KAFKA_STORAGE_ERROR
                return
            read.found = found
            read.available_bytes = max(found.size_bytes, bytes_max if found.is_cut else 0)
            if found.next_offset < upper:
                left = bytes_max - found.size_bytes
                read.following = LogRange(log, codec, found.next_offset, upper, left)
        if committed:
            # A client skips an aborted producer's records until it meets the marker. Transactions
            # that begin behind the records found do not matter to it yet.
            first = max(target.fetch_offset, read.found.unmarked_below)
            read.aborted = log.aborted_between(first, read.found.next_offset)


def served_codec(limits: BatchLimits) -> Compression:
    """The codec of a topic's batches from segments, which do not know the producer's codec."""
    return limits.compression or Compression.NONE


def _queues(
    targets: Sequence[FetchTarget], find: Callable[[FetchTarget], Partition]
) -> Iterator[WaitQueue]:
    """The queues to park in. A partition that is unknown here makes the first read answer at once,
    unless it becomes known meanwhile.
    """
    for target in targets:
        try:
            queue = find(target).readers
        except PartitionError:
            continue
        yield queue


def epoch_error(asked: int, current: int) -> ErrorCode:
    """The error for a client that names a leader epoch (KIP-320); -1 names none."""
    if asked in (-1, current):
        return ErrorCode.NONE
    if asked < current:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def _enough(reads: Sequence[PartitionRead], bytes_min: int) -> bool:
    """Whether to answer at once: enough bytes, an error, or nothing to wait for.

    Available bytes that were not loaded count too.
    """
    available_bytes = 0
    for read in reads:
        if read.code is not ErrorCode.NONE or read.found.missing is not None:
            return True
        available_bytes += read.available_bytes
    return available_bytes >= bytes_min or not reads
