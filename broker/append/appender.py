"""The produce path: the broker checks batches off the event loop, gives offsets, fills the WAL.

The appender serves a connection's submissions strictly in their order. It checks all waiting
submissions in one call; more gather meanwhile. Large batches take far more time, so it checks their
submissions one by one in a lane of their own (`large_batches`). Later submissions of the same
connection wait behind them, and other connections go on.

An appended batch counts for later decisions at once. It counts for readers and producers when its
slot is durable (H4); `ProducedBatch.slot` names that slot.

If the process dies before a slot is durable, no producer was told of its batches, and the successor
does not find them. If the slot's outcome stays unknown, or the writer meets a seal, the WAL writer
ends the incarnation and all of its state in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, NoReturn, TypeAlias

from tidelog.broker.append.large_batches import LargeBatches
from tidelog.broker.fairness.deadlines import Deadlines
from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.clock import Clock
from tidelog.identifiers import Offset, Slot
from tidelog.named_tuples import new_tuple
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    BatchHeader,
    TimestampType,
)
from tidelog.records.buffers import Buffer
from tidelog.records.validate.rules import BatchLimits, InvalidBatch, LargeBatch, RecordError
from tidelog.records.validate.validation import accept_batches
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.producer_state import AppendRefused
from tidelog.wal.write.writer import Told, WalLost, WalWriter
from tidelog.workers.offload import Offload

GROUP_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that one call checks together."""
INLINE_BYTES_MAX = 128 * 1024
"""Up to this size the check takes less time than its handover to a thread, if nothing is
compressed."""


class ProducedBatch(NamedTuple):
    """A batch's place in the log. The batch counts when `slot` is durable."""

    base_offset: int
    log_append_time_ms: int
    log_start: int
    slot: Slot
    records: int
    """0 for a duplicate, which was counted before."""


class AppendFailed(NamedTuple):
    """Why a batch was refused; nothing of it was appended."""

    code: ErrorCode
    message: str
    record_errors: Sequence[RecordError] = ()


AppendResult: TypeAlias = ProducedBatch | AppendFailed


@dataclass(slots=True)
class AppendItem:
    """One partition's batch in a produce request."""

    partition: Partition
    records: Buffer
    limits: BatchLimits
    ordinal: int = NO_ORDINAL
    """The transaction's ordinal, if the coordinator has just said that the partition is in it."""
    transaction_version: int = 0
    result: AppendResult | None = None


class Submission:
    """One produce request's batches, from a `connection`.

    The appender calls `settled` when each item has its result, or with the reason why the results
    are unknown. There is no future: a broker serves thousands of submissions a second.
    """

    __slots__ = (
        "_settled",
        "connection",
        "is_abandoned",
        "is_large",
        "is_taken",
        "items",
        "prepared",
        "size_bytes",
    )

    def __init__(self, connection: int, items: list[AppendItem], settled: Told) -> None:
        self.connection = connection
        self.items = items
        self.prepared: list[Prepared | InvalidBatch] = []
        """Each item's checked form; empty before the check."""
        self.size_bytes = sum([len(item.records) for item in items])
        self.is_taken = False
        """Whether the appender has taken it: nothing can withdraw it any more."""
        self.is_abandoned = False
        """Whether its connection is gone."""
        self.is_large = False
        """Whether the check has found a large batch, which the other lane must check."""
        self._settled: Told | None = settled

    def withdraw(self) -> bool:
        """Give up the submission: its client has gone.

        Unless the appender has taken it, its records are released and never appended. Returns
        whether it was withdrawn in time.
        """
        self._settled = None
        if not self.is_taken:
            self.items, self.prepared, self.size_bytes = [], [], 0
        return not self.is_taken

    def settle(self, lost: WalLost | None = None) -> None:
        """Report that each item has its result, or with `lost` why it may never have one."""
        # The callee holds this submission: a reference cycle would keep the records in memory.
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(lost)

    def drop(self) -> None:
        """Report that the connection is gone and nothing was appended."""
        self.settle(WalLost("the connection is gone; nothing was appended"))

    def fail(self) -> None:
        """Report that the broker has ended: appended batches may or may not become durable."""
        self.settle(WalLost("the broker has ended; the outcome is unknown"))


class Prepared(NamedTuple):
    """A batch as the WAL stores it, except its offset; with its append time (-1: none)."""

    data: Buffer
    header: BatchHeader
    log_append_time_ms: int


def prepare(
    requests: Sequence[Buffer],
    limits: Sequence[BatchLimits],
    now_ms: int,
    *,
    small_only: bool = False,
) -> list[Prepared | InvalidBatch]:
    """Check many requests, one batch each, and convert them to their topics' format.

    `small_only` leaves large batches for later. Pure; runs in a worker thread.
    """
    prepared: list[Prepared | InvalidBatch] = []
    for accepted in accept_batches(requests, limits, now_ms, small_only=small_only):
        if isinstance(accepted, InvalidBatch):
            prepared.append(accepted)
            continue
        info = accepted.batches[0]
        log_append_time = info.timestamp_type is TimestampType.LOG_APPEND_TIME
        prepared.append(
            new_tuple(
                Prepared,
                (accepted.buffer, info.header, info.max_timestamp if log_append_time else -1),
            )
        )
    return prepared


def _has_codec(item: AppendItem) -> bool:
    """Whether the records may need slow decompression or compression."""
    if item.limits.compression:
        return True
    records, position = item.records, ATTRIBUTES_POSITION + 1
    return len(records) > position and bool(records[position] & COMPRESSION_MASK)


class Appender:
    """Serves submissions in order. `run` is its task; it ends only by cancellation or an error."""

    def __init__(
        self,
        writer: WalWriter,
        log_writer: LogWriter,
        offload: Offload,
        clock: Clock,
        large: LargeBatches[int, Submission],
        large_offload: Offload,
    ) -> None:
        """`large_offload` checks large batches, so that `offload` stays free for others."""
        self._writer = writer
        self._log_writer = log_writer
        self._offload = offload
        self._clock = clock
        self._waiting: deque[Submission] = deque()
        self._group: list[Submission] = []
        self._submitted = asyncio.Event()
        self._large = large
        self._large_offload = large_offload
        self._large_taken: Submission | None = None
        self._large_came = asyncio.Event()
        self._has_ended = False
        self.deadlines = Deadlines()
        """The deadlines of the submissions' requests."""

    def submit(self, connection: int, items: list[AppendItem], settled: Told) -> Submission:
        """Queue a request's batches. Synchronous: the connection's order is the log's order.

        The appender calls `settled` after this returns; it must not fail.
        """
        submission = Submission(connection, items, settled)
        if self._has_ended:
            asyncio.get_running_loop().call_soon(submission.fail)
        else:
            self._waiting.append(submission)
            self._submitted.set()
        return submission

    def lost(self, connection: int) -> None:
        """Drop a closed connection's submissions from the lane of large batches.

        So clients that come and go pile up no work. None of the dropped batches was acknowledged.
        """
        for submission in chain(self._group, self._waiting):
            submission.is_abandoned |= submission.connection == connection
        for submission in self._large.lost(connection):
            submission.drop()

    async def run(self) -> NoReturn:
        """Serve submissions until cancelled, or until the WAL has ended.

        The remaining submissions then fail: none of their batches was acknowledged.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._serve_large())
                await self._serve()
        finally:
            self._has_ended = True
            taken = [] if self._large_taken is None else [self._large_taken]
            for submission in (*self._group, *taken, *self._waiting, *self._large.drain()):
                submission.fail()

    async def _serve(self) -> NoReturn:
        while True:
            await self._submitted.wait()
            await self._writer.wait_for_room()
            await self._serve_group()

    async def _serve_group(self) -> None:
        self._group = group = self._take_group()
        now_ms = self._clock.time_ms()
        unchecked = [submission for submission in group if not submission.prepared]
        items = [item for submission in unchecked for item in submission.items]
        requests = [item.records for item in items]
        limits = [item.limits for item in items]
        size_bytes = sum([submission.size_bytes for submission in unchecked])
        is_inline = size_bytes <= INLINE_BYTES_MAX and not any(map(_has_codec, items))
        if is_inline:
            prepared = iter(prepare(requests, limits, now_ms))
        else:
            prepared = iter(
                await self._offload.run(prepare, requests, limits, now_ms, small_only=True)
            )
        for submission in unchecked:
            checked = list(islice(prepared, len(submission.items)))
            submission.prepared = checked
            if not is_inline:
                submission.is_large = any(isinstance(each, LargeBatch) for each in checked)
        settled = []
        for submission in group:
            if submission.connection in self._large.connections or submission.is_large:
                self._put_off(submission)
            else:
                self._append_all(submission, now_ms)
                settled.append(submission)
        self._group = []
        for submission in settled:
            submission.settle()

    def _take_group(self) -> list[Submission]:
        group: list[Submission] = []
        size_bytes = 0
        while self._waiting and size_bytes < GROUP_BYTES_MAX:
            submission = self._waiting.popleft()
            if submission.connection in self._large.connections:
                self._put_off(submission)
                continue
            submission.is_taken = True
            size_bytes += submission.size_bytes
            group.append(submission)
        if not self._waiting:
            self._submitted.clear()
        return group

    def _put_off(self, submission: Submission) -> None:
        """Move the submission to the lane of large batches, for its own batches or its
        connection's."""
        submission.is_taken = False
        if submission.is_abandoned:
            submission.drop()
        else:
            self._large.add(submission.connection, submission)
            self._large_came.set()

    async def _serve_large(self) -> NoReturn:
        while True:
            await self._writer.wait_for_room()
            now = self._clock.monotonic()
            connection = self._large.next_connection(now)
            seconds = None if connection is None else self._large.seconds_until(connection, now)
            if connection is not None and seconds is not None and seconds <= 0:
                await self._check_large(connection)
                continue
            self._large_came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._large_came.wait()

    async def _check_large(self, connection: int) -> None:
        """Serve the connection's first submission, then release those behind it."""
        self._large_taken = submission = self._large.take(connection)
        submission.is_taken = True
        began, now_ms = self._clock.monotonic(), self._clock.time_ms()
        items = submission.items
        requests, limits = [item.records for item in items], [item.limits for item in items]
        submission.prepared = await self._large_offload.run(prepare, requests, limits, now_ms)
        self._append_all(submission, now_ms)
        self._large_taken = None
        now = self._clock.monotonic()
        rest = self._large.examined(connection, now - began, now)
        self._waiting.extendleft(reversed(list(rest)))
        if self._waiting:
            self._submitted.set()
        submission.settle()

    def _append_all(self, submission: Submission, now_ms: int) -> None:
        for item, prepared in zip(submission.items, submission.prepared, strict=True):
            item.result = self._append(item, prepared, now_ms)
        submission.prepared = []

    def _append(
        self, item: AppendItem, batch: Prepared | InvalidBatch, now_ms: int
    ) -> AppendResult:
        if isinstance(batch, InvalidBatch):
            return AppendFailed(ErrorCode(batch.error_code), batch.message, batch.record_errors)
        log = item.partition.log
        try:
            appended, slot = self._log_writer.append(
                item.partition,
                batch.data,
                batch.header,
                now_ms,
                ordinal=item.ordinal,
                transaction_version=item.transaction_version,
            )
        except PartitionError as error:
            # The topic was deleted, or the partition moved away, during the check.
            return AppendFailed(error.code, str(error))
        except AppendRefused as error:
            return AppendFailed(ErrorCode(error.error_code), str(error))
        log_append_time_ms = batch.log_append_time_ms
        if appended.duplicate and log_append_time_ms >= 0:
            log_append_time_ms = appended.max_timestamp
        records = 0 if appended.duplicate else batch.header.record_count
        return new_tuple(
            ProducedBatch,
            (appended.base_offset, log_append_time_ms, log.log_start, slot, records),
        )

    async def delete_records(self, partition: Partition, offset: Offset) -> Offset:
        """Move the log start up to `offset`; return the new log start once it is durable.

        Raises PartitionError: this broker no longer leads the partition; nothing was deleted.
        """
        await self._writer.durable(self._log_writer.begin_log_at(partition, offset))
        return Offset(partition.log.log_start)
