"""`read`: a topic as one frame, whose segments Spark's own Parquet reader reads.

One view of the partitions fixes the frame: the segments of a table version, and the tail from that
version's end to the last stable offset. The files are named to Spark's reader. The tail comes
through the source, with exactly those offsets as its options.

| Meanwhile | The frame |
|---|---|
| the tail is rolled | the source reads its offsets from the new segments |
| a segment is compacted or expires | the file stays for `log.delete.grace.ms`, then reads fail |
| retention takes offsets of the tail | the read fails by DataLost |
| the topic is deleted and created again | `read` refuses; once it has returned, as above |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.rows import ALL_TIMES, Times
from tidelog.bucket.views.selection import Offsets, RowSelection, selected
from tidelog.errors import InvalidConfiguration
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.spark_source.columns import Column as SourceColumn
from tidelog.spark_source.columns import default_columns, default_schema
from tidelog.spark_source.files import SEGMENT_SCHEMA, hadoop_path, named, s3a_options
from tidelog.spark_source.options.option_names import READ_OPTIONS
from tidelog.spark_source.options.options import Subscribed
from tidelog.spark_source.options.store_address import store_url_of
from tidelog.spark_source.ranges import chosen_topics
from tidelog.spark_source.session import Session
from tidelog.storage.segment.segment import Segment, table_prefix

_OFFSETS_A_TASK: Final = 250_000
_GLOB: Final = re.compile(r"[\[\]{}*?]")
"""Letters by which Hadoop takes a path for a pattern of paths."""
_ESCAPED: Final = r"\\\g<0>"
_OF_FORMAT: Final = frozenset(name.lower() for name in READ_OPTIONS)
"""Options of `format("tidelog")`."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The offsets [start, end) of a partition, and where they are."""

    number: int
    start: int
    end: int
    table_next: int
    segments: tuple[Segment, ...]

    @property
    def tail(self) -> tuple[int, int] | None:
        start = max(self.start, self.table_next)
        return (start, self.end) if start < self.end else None

    def is_whole(self, segment: Segment) -> bool:
        """True if all rows of the segment are in the range."""
        return self.start <= segment.first_row and segment.last_row < self.end


@dataclass(frozen=True, slots=True)
class _Taken:
    topic_id: TopicId
    parts: tuple[_Part, ...]


def read(
    spark: SparkSession,
    *,
    store: str,
    topic: str,
    partitions: Iterable[int] | None = None,
    offsets: Offsets = (None, None),
    since: datetime | int | None = None,
    until: datetime | int | None = None,
    include_headers: bool = False,
    include_producer: bool = False,
    **options: str,
) -> DataFrame:
    """A topic's committed records as one snapshot, with the columns of `format("tidelog")`.

    `offsets` is (first, end) for all partitions, or a mapping by partition; the end is exclusive.
    `since` and `until` select by the records' own timestamps, as datetimes or in milliseconds;
    `until` is exclusive. `options` are those of `committed_files`.

    Raises InvalidConfiguration, CorruptObject, StoreError.
    """
    from tidelog.spark_source import register

    for name in options:
        if name.lower() in _OF_FORMAT:
            raise InvalidConfiguration(
                f"read takes no option {name}: partitions, offsets, since and until choose the rows"
            )
    rows = selected(partitions, offsets, since, until)
    columns = default_columns(headers=include_headers, producer=include_producer)
    register(spark)
    with Session(store_url_of({"store": store, **named(options)})) as session:
        taken = session.run(_taken(session.bucket, topic, rows))
        base = hadoop_path(session.store.url, table_prefix(taken.topic_id).rstrip("/"))
        frames = _segment_frames(spark, base, topic, columns, taken, s3a_options(store, **options))
        tails = {part.number: part.tail for part in taken.parts if part.tail is not None}
        if tails:
            source = spark.read.format("tidelog").option("store", store).options(**named(options))
            source = source.options(**_tail_options(topic, tails))
            source = source.option("includeHeaders", include_headers)
            source = source.option("includeProducer", include_producer)
            frames.append(source.options(**_task_options(spark, tails)).load())
            session.run(_check_same(session.bucket, topic, taken.topic_id))
    if not frames:
        schema = default_schema(headers=include_headers, producer=include_producer)
        return spark.createDataFrame([], schema)
    return _in_times(reduce(DataFrame.union, frames), rows.times)


async def _taken(bucket: Bucket, name: str, rows: RowSelection) -> _Taken:
    (topic,) = chosen_topics(Subscribed((name,)), await bucket.refresh())
    rows.check_partitions(name, topic.partition_count)
    wanted = [
        TopicPartition(topic.topic_id, number)
        for number in range(topic.partition_count)
        if rows.takes(number)
    ]
    view = await bucket.view_partitions(wanted)
    parts = []
    for partition in wanted:
        each = view.partition(partition)
        start, end = rows.range_of(partition.partition)
        start, end = max(start, each.log_start), min(end, each.last_stable_offset)
        segments = tuple(
            stored.segment
            for stored in each.segments
            if stored.segment.first_row < end
            and stored.segment.last_row >= start
            and rows.times.may_be_in(stored.segment)
        )
        parts.append(_Part(partition.partition, start, end, each.table_next, segments))
    return _Taken(topic.topic_id, tuple(parts))


async def _check_same(bucket: Bucket, name: str, topic_id: TopicId) -> None:
    """The source has found the topic by its name, after the view."""
    await bucket.refresh()
    if bucket.topic(name).topic_id != topic_id:
        raise InvalidConfiguration(f"topic {name} was created again meanwhile; read it again")


def _segment_frames(
    spark: SparkSession,
    base: str,
    topic: str,
    columns: Sequence[SourceColumn],
    taken: _Taken,
    hadoop: dict[str, str],
) -> list[DataFrame]:
    """One frame of the segments that are read whole, and one of those that are cut."""
    reader = spark.read.options(**hadoop).option("basePath", base)
    # Whatever the session says: a frame without the rows of a lost file would be wrong.
    reader = reader.options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
    # Times of before 1900 would differ from those of the tail.
    reader = reader.option("datetimeRebaseMode", "CORRECTED")
    reader = reader.schema(f"{SEGMENT_SCHEMA}, partition int")
    folder = _GLOB.sub(_ESCAPED, base)

    def frame(segments: Iterable[Segment]) -> DataFrame:
        return reader.parquet(*(f"{folder}/{each.path}" for each in segments))

    wanted = [_as_source(column, topic) for column in columns]
    found = []
    whole = [each for part in taken.parts for each in part.segments if part.is_whole(each)]
    if whole:
        found.append(frame(whole).selectExpr(*wanted))
    cut = [part for part in taken.parts if any(not part.is_whole(each) for each in part.segments)]
    if cut:
        files = [each for part in cut for each in part.segments if not part.is_whole(each)]
        # Parquet's statistics know of these two; the exact ranges need the partition too.
        first, end = min(part.start for part in cut), max(part.end for part in cut)
        ranges = " OR ".join(
            f"(partition = {part.number} AND offset >= {part.start} AND offset < {part.end})"
            for part in cut
        )
        rows = frame(files).filter(f"offset >= {first} AND offset < {end}").filter(ranges)
        found.append(rows.selectExpr(*wanted))
    return found


def _as_source(column: SourceColumn, topic: str) -> str:
    """A column of the source as SQL, from those of the segments.

    SQL takes one call into the JVM. Expressions would take some twenty a column.
    """
    if column.name == "topic":
        # A bare literal could not be null, so the schema would differ from the source's.
        return f"CASE WHEN true THEN '{topic}' END AS `topic`"
    return f"`{column.row_column or column.name}` AS `{column.name}`"


def _tail_options(topic: str, tails: dict[int, tuple[int, int]]) -> dict[str, str]:
    return {
        "assign": json.dumps({topic: [*tails]}),
        "startingOffsets": json.dumps({topic: {each: tail[0] for each, tail in tails.items()}}),
        "endingOffsets": json.dumps({topic: {each: tail[1] for each, tail in tails.items()}}),
    }


def _task_options(spark: SparkSession, tails: dict[int, tuple[int, int]]) -> dict[str, str]:
    """As many tasks as run at once, or as the offsets need: a task costs more than a small tail."""
    # Spark Connect does not tell the number; there each partition's tail keeps a task of its own.
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return {}
    needed = sum(end - start for start, end in tails.values()) // _OFFSETS_A_TASK
    return {"maxPartitions": str(max(context.defaultParallelism, needed))}


def _in_times(rows: DataFrame, times: Times) -> DataFrame:
    if times == ALL_TIMES:
        return rows
    if times.since_ms is not None:
        rows = rows.filter(F.col("timestamp") >= F.timestamp_millis(F.lit(times.since_ms)))
    if times.until_ms is not None:
        rows = rows.filter(F.col("timestamp") < F.timestamp_millis(F.lit(times.until_ms)))
    return rows
