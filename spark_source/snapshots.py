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
from tidelog.spark_source.options.options import Bound, Offsets, ReadOptions, Timestamps
from tidelog.spark_source.ranges import (
    ReadableOffsets,
    Snapshot,
    check_named,
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
        return Snapshot(limits_in(view, wanted, options))
    # This needs the coordinators' code, and few reads need it.
    from tidelog.bucket.views.atomic import atomic_view

    atomic = await atomic_view(bucket, *(topic.name for topic in topics))
    return Snapshot(limits_in(atomic.view, wanted, options), atomic.excluded)


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
    """The offsets of a time bound in each partition; empty for other bounds.

    For an atomic snapshot pass the `keep` of its view.

    InvalidConfiguration if the bound names other partitions than these; CorruptObject, StoreError.
    """
    limits = list(limits)
    if isinstance(bound, Offsets):
        check_named(bound.option, bound.by_partition, limits)
    if not isinstance(bound, Timestamps):
        return {}
    named = bound.by_partition
    if not isinstance(named, int):
        check_named(bound.option, named, limits)

    async def offset_of(each: ReadableOffsets) -> int | None:
        time = named if isinstance(named, int) else named[each.topic][each.partition.partition]
        return await first_offset_since(
            bucket, view.partition(each.partition), time, each.end, keep
        )

    offsets = await read_all(offset_of, limits, asyncio.Semaphore(LOOKS_AT_ONCE_MAX))
    return {each.partition: offset for each, offset in zip(limits, offsets, strict=True)}
