"""Readers of the bucket without a broker, beside brokers that roll, compact and delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.rules.history import Key, Operation, Poll
from tests.simulation.values import value_of
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.views.atomic import atomic_view
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.tails import Keep
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import TopicPartition
from tidelog.records.batch import TimestampType
from tidelog.records.records import Record
from tidelog.storage.object_store import StoreError

_COLUMNS = ("offset", "key", "value", "headers")
_VIEWS_MAX = 4
"""Views of one opened bucket, before the reader opens it again."""
_PAUSE_SECONDS_MEAN = 2.0
_SLOW_PROBABILITY = 0.1
_SLOW_SECONDS_MAX = 40.0
"""How long a reader may pause between two partitions: even for longer than superfluous objects are
kept."""
_ATOMIC_SECONDS_MAX = 3.0
"""The longest pause within an atomic view, which is taken again when an object is missing."""
_ATTEMPTS_MAX = 5
_INSPECT_PAUSE_SECONDS_MEAN = 8.0


class BucketReader:
    """Takes views, plain and atomic ones, and reads all their records."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def run(self) -> None:
        """Look again and again until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            bucket = actor.bucket()
            for _ in range(actor.random.randint(1, _VIEWS_MAX)):
                topics = sorted({key.topic for key in actor.settings.all_keys})
                chosen = actor.random.sample(topics, actor.random.randint(1, len(topics)))
                await look(actor, bucket, chosen, is_atomic=actor.random.random() < 0.5)
                await actor.pause(_PAUSE_SECONDS_MEAN)


class BucketInspector:
    """Proves the bucket consistent while brokers write to it."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def run(self) -> None:
        """Inspect again and again until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            await actor.pause(_INSPECT_PAUSE_SECONDS_MEAN)
            await inspect(actor)


async def audit_bucket(actor: Actor) -> None:
    """At the end, the bucket is consistent, and shows all committed records."""
    await inspect(actor)
    bucket = actor.bucket()
    topics = sorted({key.topic for key in actor.settings.all_keys})
    for is_atomic in (False, True):
        await look(actor, bucket, topics, is_atomic=is_atomic, final=True)


async def look(
    actor: Actor, bucket: Bucket, topics: list[str], *, is_atomic: bool, final: bool = False
) -> None:
    """Take one view, recorded as one operation."""
    # Each view begins at the log's start.
    actor.history.assign(actor.name)
    operation = actor.history.invoke(actor.name, "view", final=final)
    operation.is_atomic = is_atomic
    read = _read_atomically if is_atomic else _read
    await _record(actor, operation, lambda: read(actor, bucket, topics, operation))


async def inspect(actor: Actor) -> None:
    """Check the whole bucket once, recorded as one operation."""
    operation = actor.history.invoke(actor.name, "check")

    async def check() -> None:
        bucket = actor.bucket()
        await bucket.refresh()
        findings = await check_bucket(bucket, lambda _: None, deep=actor.random.random() < 0.5)
        for fault in findings.faults:
            actor.history.violate(f"fsck at {operation.began_at:.3f}: {fault}")

    await _record(actor, operation, check)


async def _record(actor: Actor, operation: Operation, read: Callable[[], Awaitable[None]]) -> None:
    """Make one operation of a read. A store may fail, but no needed object may be missing or
    wrong."""
    try:
        await read()
    except StoreError as error:
        actor.history.fail(operation, error_text(error))
    except CorruptObject as error:
        actor.history.violate(f"{operation} at {operation.began_at:.3f}: {error}")
        actor.history.fail(operation, error_text(error))
    else:
        actor.history.ok(operation)


async def _read(actor: Actor, bucket: Bucket, topics: list[str], operation: Operation) -> None:
    """Read each partition by itself. If an object is missing, take a new view and read on from that
    row (F4)."""
    found = await bucket.view(*topics)
    for key, view in _partitions(bucket, topics, found.partition):
        await _dawdle(actor, _SLOW_SECONDS_MAX)
        position, missing = 0, ""
        while True:
            poll = _poll(key, view, position, view.last_stable_offset)
            operation.polls.append(poll)
            try:
                await _read_rows(bucket, view, poll)
            except MissingObject as error:
                if error.key == missing:
                    raise
                missing = error.key
                # The rows read so far count.
                position = poll.end = poll.records[-1][0] + 1 if poll.records else poll.start
                again = await bucket.view_partitions([view.partition])
                view = again.partition(view.partition)
            else:
                break


async def _read_atomically(
    actor: Actor, bucket: Bucket, topics: list[str], operation: Operation
) -> None:
    """Read all partitions as one view shows them. If an object is missing, take another view."""
    missing = ""
    for _ in range(_ATTEMPTS_MAX):
        operation.polls.clear()
        found = await atomic_view(bucket, *topics)
        try:
            for key, view in _partitions(bucket, topics, found.view.partition):
                await _dawdle(actor, _ATOMIC_SECONDS_MAX)
                # An atomic view also shows transactions that were decided above the first open one.
                poll = _poll(key, view, 0, view.high_watermark)
                operation.polls.append(poll)
                await _read_rows(bucket, view, poll, found.keep)
        except MissingObject as error:
            if error.key == missing:
                raise
            missing = error.key
        else:
            return
    raise MissingObject(missing, f"and others before it in {_ATTEMPTS_MAX} views")


def _partitions(
    bucket: Bucket, topics: list[str], view_of: Callable[[TopicPartition], PartitionView]
) -> Iterator[tuple[Key, PartitionView]]:
    for name in topics:
        topic = bucket.topic(name)
        for number in range(topic.partition_count):
            yield Key(name, number), view_of(TopicPartition(topic.topic_id, number))


def _poll(key: Key, view: PartitionView, position: int, end: int) -> Poll:
    """The records that a view must show of a partition from a position on."""
    start = max(position, view.log_start)
    return Poll(
        key,
        start,
        max(start, end),
        [],
        high_watermark=view.high_watermark,
        last_stable_offset=view.last_stable_offset,
        log_start=view.log_start,
    )


async def _read_rows(
    bucket: Bucket, view: PartitionView, poll: Poll, keep: Keep | None = None
) -> None:
    async for rows in bucket.rows(view, poll.start, columns=_COLUMNS, keep=keep):
        for row in rows.to_pylist():
            headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
            record = Record(
                row["offset"], -1, TimestampType.CREATE_TIME, row["key"], row["value"], headers
            )
            poll.records.append((record.offset, value_of(record)))


async def _dawdle(actor: Actor, seconds_max: float) -> None:
    """Now and then, take some time between two partitions."""
    if not actor.stopping.is_set() and actor.random.random() < _SLOW_PROBABILITY:
        await actor.clock.sleep(actor.random.uniform(0.0, seconds_max))
