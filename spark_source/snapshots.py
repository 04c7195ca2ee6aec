"""Takes snapshots of a bucket, and finds the offsets of times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import BucketView
from tidelog.bucket.views.tails import Keep
from tidelog.concurrency import read_all
from tidelog.identifiers import TopicPartition
from tidelog.spark_source.options.options import Bound, ReadOptions, Timestamps
from tidelog.spark_source.ranges import (
    ReadableOffsets,
    Snapshot,
    chosen_partitions,
    chosen_topics,
    limits_of,
)
from tidelog.spark_source.times import first_offset_since

LOOKS_AT_ONCE_MAX: Final = 16
"""Partitions searched for a time at once; each search takes two or three requests."""


async def take_snapshot(bucket: Bucket, options: ReadOptions) -> Snapshot:
    """The current snapshot that the options select.

    Raises InvalidConfiguration, CorruptObject, StoreError.
    """
    state = await bucket.refresh()
    topics = chosen_topics(options.choice, state)
    wanted = chosen_partitions(options.choice, topics)
    if not options.is_atomic:
        view = await bucket.view_partitions(wanted)
        limits = limits_in(view, wanted, options)
        starts = await offsets_since(bucket, view, options.starting, limits)
        ends = await offsets_since(bucket, view, options.ending, limits)
        return Snapshot(limits, starts=starts, ends=ends)
    # This needs the coordinators' code, and few reads need it.
    from tidelog.bucket.views.atomic import atomic_view

    atomic = await atomic_view(bucket, *(topic.name for topic in topics))
    limits = limits_in(atomic.view, wanted, options)
    starts = await offsets_since(bucket, atomic.view, options.starting, limits, atomic.keep)
    ends = await offsets_since(bucket, atomic.view, options.ending, limits, atomic.keep)
    return Snapshot(limits, atomic.excluded, starts, ends)


def limits_in(
    view: BucketView, wanted: Iterable[TopicPartition], options: ReadOptions
) -> tuple[ReadableOffsets, ...]:
    """The readable offsets of some partitions. Raises CorruptObject, NoSuchTopic."""
    return tuple(
        limits_of(
            view.partition(partition),
            include_tail=options.include_tail,
            is_atomic=options.is_atomic,
        )
        for partition in wanted
    )


async def offsets_since(
    bucket: Bucket,
    view: BucketView,
    bound: Bound | None,
    limits: Iterable[ReadableOffsets],
    keep: Keep | None = None,
) -> Mapping[TopicPartition, int | None]:
    """The offsets of a time bound in each partition that it names; empty for other bounds.

    For an atomic snapshot pass the `keep` of its view.

    Raises CorruptObject, StoreError.
    """
    if not isinstance(bound, Timestamps):
        return {}
    named = bound.by_partition

    def time_of(each: ReadableOffsets) -> int | None:
        if isinstance(named, int):
            return named
        return named.get(each.topic, {}).get(each.partition.partition)

    async def offset_of(wanted: tuple[ReadableOffsets, int]) -> int | None:
        each, time = wanted
        return await first_offset_since(
            bucket, view.partition(each.partition), time, each.end, keep
        )

    timed = [(each, time) for each in limits if (time := time_of(each)) is not None]
    offsets = await read_all(offset_of, timed, asyncio.Semaphore(LOOKS_AT_ONCE_MAX))
    return {each.partition: offset for (each, _), offset in zip(timed, offsets, strict=True)}
