"""Serves fetches: what is durable and visible now, or after a wait, within the client's limits."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tidelog.broker.fetch_session import FetchTarget
from tidelog.broker.log_reader import Loaded, LogReader, LogSlice
from tidelog.broker.partitions import Partition, PartitionError
from tidelog.broker.waiters import Waiter, WaitQueue
from tidelog.clock import Clock
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import StoreError
from tidelog.wal.extents import Extent
from tidelog.wal.transactions import AbortedTransaction

_log = logging.getLogger(__name__)
LOAD_ROUNDS_MAX = 64
"""Times that one fetch goes to the store; a response is cut there, never wrong."""


class Isolation(IntEnum):
    """Which records a reader sees (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(slots=True)
class FetchLimits:
    """What a client allows one answer to hold, and how long it waits for it."""

    bytes_min: int
    bytes_max: int
    wait_ms_max: int


@dataclass(slots=True)
class PartitionRead:
    """What one partition answers. Offsets are -1 with an error."""

    target: FetchTarget
    code: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    found: LogSlice = field(default_factory=LogSlice)
    available_bytes: int = 0
    """What there is, as far as the limits let it be read; what they cut off in the middle of a
    batch counts too, as in Kafka."""
    leader_epoch: int = -1


class Fetcher:
    """Reads many partitions for one request. `find` gives a target's partition or raises."""

    def __init__(self, reader: LogReader, clock: Clock, may_serve: Callable[[], bool]) -> None:
        self._reader = reader
        self._clock = clock
        self._may_serve = may_serve
        self._parked: dict[Waiter, None] = {}
        self._is_closed = False

    def close(self) -> None:
        """From now on nobody waits for records; who does is answered with what there is."""
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
        """One answer per target, in order. Waits while there is less than the client wants."""
        deadline = self._clock.monotonic() + limits.wait_ms_max / 1000
        # Nobody waits for more than the answer may hold.
        bytes_min = min(limits.bytes_min, limits.bytes_max)
        # Parked before the first look, so that nothing can come unseen between look and wait.
        with Waiter(_queues(targets, find)) as waiter, self._parking(waiter):
            while True:
                reads = await self._read(targets, find, isolation, bytes_min, limits.bytes_max)
                remaining = deadline - self._clock.monotonic()
                if _enough(reads, bytes_min) or remaining <= 0 or self._is_closed:
                    return reads
                if not await waiter.wait(remaining):
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
        # What is loaded is held until the answer is put together, so it is limited like the answer.
        loadable_bytes = max(bytes_max, 1)
        for _ in range(LOAD_ROUNDS_MAX):
            reads = self._read_loaded(targets, find, isolation, bytes_max, loaded)
            missing = []
            for extent in _missing(reads, bytes_min):
                if loadable_bytes > 0:
                    loadable_bytes -= extent.length
                    missing.append(extent)
            if not missing:
                break
            loaded = {**loaded, **await self._reader.load(missing)}
        return reads

    def _read_loaded(
        self,
        targets: Sequence[FetchTarget],
        find: Callable[[FetchTarget], Partition],
        isolation: Isolation,
        bytes_max: int,
        loaded: Loaded,
    ) -> list[PartitionRead]:
        """Read without waiting; the extents that have to be loaded first are named."""
        reads = []
        room = bytes_max
        serves = self._may_serve()
        for target in targets:
            read = PartitionRead(target)
            reads.append(read)
            if not serves:
                read.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            try:
                partition = find(target)
            except PartitionError as error:
                read.code = error.code
                continue
            self._read_partition(partition, read, isolation, room, room == bytes_max, loaded)
            room -= read.found.size_bytes
        return reads

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
            try:
                read.found = found = self._reader.slice(
                    log.extents,
                    target.fetch_offset,
                    upper,
                    bytes_max,
                    at_least_one=at_least_one,
                    loaded=loaded,
                )
            except (CorruptObject, StoreError) as error:
                _log.error(
                    "a fetch cannot be served",
                    extra={"partition": str(partition), "key": error.key, "why": str(error)},
                )
                read.code = ErrorCode.KAFKA_STORAGE_ERROR
                return
            read.available_bytes = max(found.size_bytes, bytes_max if found.is_cut else 0)
        if committed:
            read.aborted = log.aborted_between(target.fetch_offset, upper)


def _queues(
    targets: Sequence[FetchTarget], find: Callable[[FetchTarget], Partition]
) -> list[WaitQueue]:
    """Where to park. Partitions that are not here make the first look answer at once."""
    queues = []
    for target in targets:
        with contextlib.suppress(PartitionError):
            queues.append(find(target).readers)
    return queues


def epoch_error(asked: int, current: int) -> ErrorCode:
    """What a client gets that names a leader epoch (KIP-320); -1 names none."""
    if asked in (-1, current):
        return ErrorCode.NONE
    if asked < current:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def _missing(reads: Sequence[PartitionRead], bytes_min: int) -> list[Extent]:
    """What to load: where nothing was found; elsewhere while there is less than the client wants.
    So a partition whose records are not in memory is not passed over for others."""
    is_enough = sum(read.available_bytes for read in reads) >= bytes_min
    return [
        read.found.missing
        for read in reads
        if read.found.missing is not None and not (is_enough and read.found.buffers)
    ]


def _enough(reads: Sequence[PartitionRead], bytes_min: int) -> bool:
    """Whether to answer at once: enough bytes, an error, or nothing to wait for. What is there but
    was not loaded counts as enough."""
    available_bytes = 0
    for read in reads:
        if read.code is not ErrorCode.NONE or read.found.missing is not None:
            return True
        available_bytes += read.available_bytes
    return available_bytes >= bytes_min or not reads
