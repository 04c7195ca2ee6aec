"""Streaming reads: each partition up to its last stable offset, from checkpoint to checkpoint.

Only Spark's checkpoint holds the stream's position. Spark logs the end of a batch before it reads
the batch. So a batch that runs again, also after the driver's death, reads the same offsets to the
same rows: committed records do not change.

Spark does not log the beginning of the first batch: a rerun calls `initialOffset` again. So the
first batch is empty. Spark logs its end, where the second batch begins, and a rerun of an empty
batch reads nothing elsewhere. New partitions begin with an empty batch for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.bucket.views.changes import Changes
from tidelog.bucket.views.reading import BucketView
from tidelog.identifiers import TopicPartition
from tidelog.spark_source.batch import PieceReader, logger
from tidelog.spark_source.options.options import ReadOptions
from tidelog.spark_source.plain_errors import plain_errors
from tidelog.spark_source.planning import described, plan
from tidelog.spark_source.ranges import (
    ReadableOffsets,
    available,
    check_named,
    chosen_partitions,
    chosen_topics,
    offset_at,
)
from tidelog.spark_source.session import Session
from tidelog.spark_source.snapshots import limits_in, offsets_since
from tidelog.spark_source.stream.progress import (
    Checkpoint,
    StreamOffsets,
    between,
    limited,
    pending,
    progress_at,
)

if TYPE_CHECKING:
    from tidelog.spark_source.stream.publishing import Publisher

IDLE_POLL_SECONDS: Final = 1.0
"""An idle query requests the latest offsets many times a second; the store gets one request."""


class TopicWatcher:
    """Looks at the chosen partitions as rarely as possible.

    A look reads the additions since the last one, and costs several requests even if there are
    none. So an idle query first checks for changes, with one request a second.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.session = Session(options.store_url, remembers=True)
        self._changes = Changes(self.session.bucket.access, with_tails=options.include_tail)
        self._view: BucketView | None = None
        self._limits: tuple[ReadableOffsets, ...] = ()
        self._asked_at = 0.0
        self._must_look = True
        self._was_busy = True

    @property
    def seen(self) -> tuple[ReadableOffsets, ...]:
        """The readable offsets at the last look."""
        return self._limits

    def view(self) -> BucketView:
        """The view of the last look; without one, looks first."""
        if self._view is None:
            self.look()
        assert self._view is not None
        return self._view

    def look(self) -> tuple[ReadableOffsets, ...]:
        """The readable offsets now. Raises InvalidConfiguration, CorruptObject, StoreError."""
        self._must_look = True
        self._asked_at = self.session.clock.monotonic()
        self.session.run(self._refresh())
        self._must_look = False
        return self._limits

    def poll(self, start: StreamOffsets) -> tuple[ReadableOffsets, ...]:
        """The readable offsets for a stream at `start`; raises as `look` does.

        Looks again if the stream has caught up, or if the last request is old and the bucket has
        changed. Otherwise the offsets are those of the last look.
        """
        is_recent = self.session.clock.monotonic() - self._asked_at < IDLE_POLL_SECONDS
        # The stream has just read everything seen; more may have arrived meanwhile.
        has_caught_up = self._was_busy and not self._has_more(start)
        if self._must_look or has_caught_up or (not is_recent and self._has_new_records()):
            self.look()
        self._was_busy = self._has_more(start)
        return self._limits

    def _has_more(self, start: StreamOffsets) -> bool:
        return any(start.offsets.get(each.partition, -1) < each.end for each in self._limits)

    def _has_new_records(self) -> bool:
        self._asked_at = self.session.clock.monotonic()
        assert self._view is not None
        return self.session.run(self._changes.found([*self._view.tables.values()]))

    async def _refresh(self) -> None:
        bucket, options = self.session.bucket, self._options
        state = await bucket.refresh()
        wanted = chosen_partitions(options.choice, chosen_topics(options.choice, state))
        view = await bucket.view_partitions(wanted)
        there = [each for each in wanted if each in view.partitions or each in view.failures]
        self._limits, self._view = limits_in(view, there, options), view


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in the driver's long-lived process, and reads them in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # Spark 4.2 hides an error of this constructor: the first look tells a batch's options.
        self._options = options
        self._pieces = PieceReader(options, schema)
        # Opened at first use: the readers in tasks never look.
        self._watcher: TopicWatcher | None = None
        self._initial: Checkpoint | None = None
        self._is_first_batch = False
        self._target: Mapping[TopicPartition, int] | None = None
        self._triggered_at: float | None = None
        self._publisher: Publisher | None = None

    @plain_errors()
    def initialOffset(self) -> Checkpoint:
        """The beginning of the first batch."""
        if self._initial is None:
            # Spark has set the target by now. A beginning behind it would look like lost records.
            limits = self._targeted(self._watched().look())
            self._initial = self._starting_progress(limits).checkpoint()
        self._is_first_batch = True
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """The batch size from the options."""
        if self._options.trigger_offsets_max is not None:
            return ReadMaxRows(self._options.trigger_offsets_max)
        if self._options.trigger_offsets_min is not None:
            return ReadMinRows(self._options.trigger_offsets_min)
        return ReadAllAvailable()

    @plain_errors()
    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:
        """The end of the next batch; `start` if there is none.

        Raises DataLost, InvalidConfiguration, CorruptObject, StoreError.
        """
        if self._is_first_batch:
            self._is_first_batch = False
            return start
        progress = StreamOffsets.of(start)
        watcher = self._watched()
        if self._publisher is not None:
            # Spark calls this once its commit log has everything up to `start`.
            self._publisher.publish(progress, at_once=self._target is not None)
        limits = self._targeted(watcher.poll(progress))
        ranges = pending(progress, limits, fail_on_data_loss=self._options.fail_on_data_loss)
        if any(each.limits.partition not in progress.offsets for each in ranges):
            # Spark logs only the end of a batch. So the beginning of a new partition is the end of
            # a batch of its own, which is empty like the first one.
            starts = {each.limits.partition: each.start for each in ranges}
            return progress_at(limits, starts).checkpoint()
        offsets_max = 0
        if not isinstance(limit, ReadAllAvailable):
            offsets_max = self._options.trigger_offsets_max or 0
            if self._must_wait(sum(each.end - each.start for each in ranges)):
                return start
        if offsets_max:
            ends = limited(ranges, offsets_max)
        else:
            ends = {each.limits.partition: each.end for each in ranges}
        latest = progress_at(limits, ends).checkpoint()
        if latest != start:
            self._triggered_at = watcher.session.clock.monotonic()
        return latest

    def reportLatestOffset(self) -> Checkpoint | None:
        """The readable offsets at the last look, for the lag in Spark's progress report."""
        if self._watcher is None or not self._watcher.seen:
            return None
        seen = self._watcher.seen
        return progress_at(seen, {each.partition: each.end for each in seen}).checkpoint()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the current end offsets."""
        limits = self._watched().look()
        self._target = {each.partition: each.end for each in limits}

    @plain_errors()
    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """The pieces between two checkpoints. Raises DataLost, CorruptObject, StoreError."""
        self._is_first_batch = False
        first, last = StreamOffsets.of(start), StreamOffsets.of(end)
        watcher = self._watched()
        view = watcher.view()
        limits = {each.partition: each for each in watcher.seen}
        if any(
            part not in limits or limits[part].log_end < last.offsets[part] for part in last.offsets
        ):
            limits = {each.partition: each for each in watcher.look()}
            view = watcher.view()
        is_loss = self._options.fail_on_data_loss
        planned = []
        for wanted in between(first, last, limits, fail_on_data_loss=is_loss):
            partition = view.partition(wanted.limits.partition)
            there = available(wanted, partition.log_start, fail_on_data_loss=is_loss)
            planned.append((there, partition))
            logger.info("reads %s", described(there, partition))
        pieces = plan(
            planned,
            partitions_min=self._options.partitions_min,
            records_max=self._options.records_max,
        )
        return [InputPartition((piece,)) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        return self._pieces.read(partition)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.session.close()
            self._watcher = self._publisher = None

    def _watched(self) -> TopicWatcher:
        if self._watcher is None:
            options = self._options = self._options.for_stream()
            self._watcher = TopicWatcher(options)
            if options.publish_group is not None:
                # The publisher imports Kafka's protocol, which a read does not need.
                from tidelog.spark_source.stream.publishing import Publisher

                self._publisher = Publisher(
                    options.publish_group,
                    options.bootstrap,
                    options.security,
                    self._watcher.session,
                )
        return self._watcher

    def _starting_progress(self, limits: Sequence[ReadableOffsets]) -> StreamOffsets:
        options, watcher = self._options, self._watched()
        bucket, view = watcher.session.bucket, watcher.view()
        assert options.starting is not None
        check_named(options.starting, limits)
        since = watcher.session.run(offsets_since(bucket, view, options.starting, limits))
        is_latest = options.is_latest_without_match
        offsets = {
            each.partition: offset_at(options.starting, each, since, is_latest=is_latest)
            for each in limits
        }
        return progress_at(limits, offsets)

    def _targeted(self, limits: Sequence[ReadableOffsets]) -> list[ReadableOffsets]:
        target = self._target
        if target is None:
            return list(limits)
        return [
            replace(each, end=min(each.end, target[each.partition]))
            for each in limits
            if each.partition in target
        ]

    def _must_wait(self, offsets: int) -> bool:
        """True if a batch is still too small and not yet overdue."""
        least = self._options.trigger_offsets_min
        if least is None or offsets >= least or self._target is not None:
            return False
        if self._triggered_at is None:
            return False
        waited = self._watched().session.clock.monotonic() - self._triggered_at
        return waited * 1000 < self._options.trigger_delay_max_ms
