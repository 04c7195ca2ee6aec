"""Batches, as Spark asks for them: snapshots, ranges, loss."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.bucket.bucket_world import roll_and_checkpoint
from tests.unit.spark_source.spark_world import (
    COMMITTED,
    SparkWorld,
    history,
    read_part,
    rows_of,
    schema_of,
    spark_world,
    transaction,
    values,
)
from tidelog.bucket.views.bucket import Bucket
from tidelog.errors import InvalidConfiguration, MissingObject
from tidelog.spark_source import columns, row_reader
from tidelog.spark_source.batch import BatchReader
from tidelog.spark_source.planning import plan
from tidelog.spark_source.ranges import DataLost, ReadRange, limits_of
from tidelog.spark_source.session import Session
from tidelog.spark_source.source import TidelogSource
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.format.object_format import wal_key

__all__ = ["spark_world"]


def seen(world: SparkWorld, **options: Any) -> list[bytes]:
    return values(rows_of(world.source(**({"subscribe": TOPIC} | options))))


def test_a_batch_has_committed_records_of_segments_and_tail(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    found = rows_of(spark_world.source(subscribe=TOPIC))
    assert values(found) == COMMITTED
    assert found[0] == {
        "key": b"k0",
        "value": b"plain 0",
        "topic": TOPIC,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "timestampType": 0,
    }
    assert seen(spark_world, includeTail=False) == COMMITTED[:4]
    assert values(rows_of(spark_world.source(subscribePattern="fl.*"))) == COMMITTED
    assert values(rows_of(spark_world.source(assign='{"flights":[0]}'))) == COMMITTED


def test_rows_are_the_same_for_every_range_and_piece_size(
    spark_world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_world.tell(history)
    source = spark_world.source(subscribe=TOPIC)
    names = ("transaction", "offset", "headers", "producerEpoch", "producerId", "value")
    every = rows_of(source, names)
    assert values(every) == COMMITTED
    assert [row["transaction"] is None for row in every] == [True, True, False, True, True, False]
    offsets = [row["offset"] for row in every]
    last = offsets[-1] + 1
    for start in range(0, last, 2):
        for end in range(start, last + 1, 3):
            part = spark_world.source(
                subscribe=TOPIC,
                startingOffsets=f'{{"{TOPIC}":{{"0":{start}}}}}',
                endingOffsets=f'{{"{TOPIC}":{{"0":{end}}}}}',
            )
            expected = [row for row in every if start <= row["offset"] < end]
            assert rows_of(part, names) == expected
    monkeypatch.setattr(columns, "BATCH_ROWS", 1)
    for limit in ({"minPartitions": 5}, {"maxRecordsPerPartition": 1}, {"minPartitions": 1000}):
        assert rows_of(spark_world.source(subscribe=TOPIC, **limit), names) == every
    # Read in the way of large segments: first the footer, then ranges.
    monkeypatch.setattr(row_reader, "WHOLE_BYTES_MAX", 0)
    assert rows_of(source, names) == every


def test_fewer_tasks_than_pieces_read_all_rows_of_their_partitions(spark_world: SparkWorld) -> None:
    async def three_partitions(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic(partitions=3)
        for number in range(3):
            await broker.produce(batch(b"first of %d" % number), partition=number)
        await roll_and_checkpoint(store, broker)
        for number in range(3):
            await broker.produce(batch(b"tail of %d" % number), partition=number)

    spark_world.tell(three_partitions)
    names = ("value", "partition", "offset")
    every = rows_of(spark_world.source(subscribe=TOPIC), names)
    assert [row["partition"] for row in every] == [0, 0, 1, 1, 2, 2]
    for most, tasks in ((1, 1), (2, 2), (5, 3)):
        source = spark_world.source(subscribe=TOPIC, maxPartitions=most)
        assert len(source.reader(schema_of("value")).partitions()) == tasks
        assert rows_of(source, names) == every
    nothing = spark_world.source(subscribePattern="none.*", maxPartitions=2)
    assert nothing.reader(schema_of("value")).partitions() == []


def test_one_frame_is_one_snapshot_however_late_it_is_read(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    frame = spark_world.source(subscribe=TOPIC)
    planned = frame.reader(schema_of("value"))
    parts = planned.partitions()

    async def more(broker: OneBroker, store: ObjectStore) -> None:
        await broker.produce(batch(b"more"))
        await roll_and_checkpoint(store, broker)

    spark_world.tell(more)
    assert values(rows_of(frame)) == COMMITTED
    assert [row["value"] for part in parts for row in read_part(planned, part)] == COMMITTED


def test_an_atomic_frame_stays_as_it_was_when_open_transactions_commit_and_are_rolled(
    spark_world: SparkWorld,
) -> None:
    async def two_topics(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic()
        opening = await transaction(broker, "later", b"later")
        await (await transaction(broker, "now", b"now")).commit()
        await broker.produce(batch(b"above"))
        frames.append(await in_thread(spark_world, snapshot="atomic"))
        frames.append(await in_thread(spark_world))
        assert (await opening.commit()).name == "NONE"
        frames.append(await in_thread(spark_world, snapshot="atomic"))
        await roll_and_checkpoint(store, broker)

    frames: list[Any] = []
    spark_world.tell(two_topics)
    assert [values(rows_of(frame)) for frame in frames] == [
        [b"now", b"above"],
        [],
        [b"later", b"now", b"above"],
    ]
    names = {row["topic"] for row in rows_of(frames[0], ["topic"])}
    assert names == {TOPIC}


def test_a_transaction_that_was_decided_is_in_though_its_markers_have_not_landed(
    spark_world: SparkWorld,
) -> None:
    spark_world.tell(history)

    async def read(bucket: Bucket, columns: list[str]) -> list[bytes]:
        await bucket.refresh()
        view = (await bucket.view(TOPIC)).of_topic(bucket.topic(TOPIC).topic_id)[0]
        limits = limits_of(view, include_tail=True, is_atomic=True)
        every = ReadRange(limits, 0, limits.end)
        # In the bucket the transaction looks open, but the coordinator's state has committed it.
        (piece,) = plan([(every, view)], excluded=frozenset())
        reader = row_reader.RowReader(bucket, columns, fail_on_data_loss=True)
        return [value async for rows in reader.rows(piece) for value in rows["value"].to_pylist()]

    with Session(f"file://{spark_world.folder}") as session:
        found = session.run(read(session.bucket, ["offset", "value"]))
    assert found == [*COMMITTED, b"open", b"above"]


async def in_thread(world: SparkWorld, **options: Any) -> Any:
    """Make the source in a thread without an event loop, as Spark makes it in a separate
    process."""
    return await asyncio.to_thread(lambda: world.source(subscribe=TOPIC, **options))


def test_spark_keeps_its_filters(spark_world: SparkWorld) -> None:
    """Spark may use one source for several uses of a DataFrame. A reader that took the filters of
    one use would apply them to the others."""
    spark_world.tell(history)
    reader = spark_world.source(subscribe=TOPIC).reader(schema_of("offset"))
    assert type(reader).pushFilters is DataSourceReader.pushFilters


def test_times_mean_offsets(spark_world: SparkWorld) -> None:
    async def dated(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic()
        await broker.produce(batch(*(b"%d" % number for number in range(5))))
        await roll_and_checkpoint(store, broker)
        await broker.produce(batch(*(b"tail %d" % number for number in range(7))))

    spark_world.tell(dated)
    assert seen(spark_world, startingTimestamp=1003, endingTimestamp=1005) == [
        *(b"3", b"4", b"tail 0", b"tail 1", b"tail 2", b"tail 3", b"tail 4"),
    ]
    each = f'{{"{TOPIC}":{{"0":1006}}}}'
    assert seen(spark_world, startingOffsetsByTimestamp=each) == [b"tail 6"]
    assert seen(spark_world, endingTimestamp=9999)[-1] == b"tail 6"
    with pytest.raises(InvalidConfiguration, match=r"startingTimestamp: flights-0 has no record"):
        seen(spark_world, startingTimestamp=1007)
    late = {"startingTimestamp": 1007, "startingOffsetsByTimestampStrategy": "latest"}
    assert seen(spark_world, **late) == []


def test_the_times_of_a_frame_mean_the_same_offsets_when_their_records_are_deleted(
    spark_world: SparkWorld,
) -> None:
    async def dated(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic()
        await broker.produce(batch(*(b"%d" % number for number in range(5))))
        await broker.produce(batch(b"of the first time again"))

    async def delete(broker: OneBroker, store: ObjectStore) -> None:
        partition = broker.broker.writes.partitions.named(TOPIC, 0)
        await broker.broker.writes.appender.delete_records(partition, 5)

    spark_world.tell(dated)
    times = {"startingTimestamp": 1001, "endingTimestamp": 1004}
    strict = spark_world.source(subscribe=TOPIC, **times)
    lenient = spark_world.source(subscribe=TOPIC, endingTimestamp=1004, failOnDataLoss=False)
    assert values(rows_of(strict)) == [b"1", b"2", b"3"]
    spark_world.tell(delete)
    with pytest.raises(DataLost, match="offsets 1 to 3 of flights-0 are not there any more"):
        rows_of(strict)
    assert rows_of(lenient) == []


def test_times_find_the_records_of_an_atomic_frame_above_an_open_transaction(
    spark_world: SparkWorld,
) -> None:
    async def dated(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic()
        await broker.produce(batch(b"0"))
        await transaction(broker, "open", b"open")
        await broker.produce(batch(*(b"above %d" % number for number in range(5))))

    spark_world.tell(dated)
    late = {"snapshot": "atomic", "startingOffsetsByTimestampStrategy": "latest"}
    assert seen(spark_world, **late) == [b"0", *(b"above %d" % number for number in range(5))]
    assert seen(spark_world, startingTimestamp=1003, **late) == [b"above 3", b"above 4"]
    assert seen(spark_world, startingTimestamp=1003, snapshot="atomic") == [b"above 3", b"above 4"]
    with pytest.raises(InvalidConfiguration, match=r"startingTimestamp: flights-0 has no record"):
        seen(spark_world, startingTimestamp=1003)


WRONG: list[tuple[dict[str, str], str]] = [
    ({"subscribe": "nowhere"}, "no topic nowhere in this bucket; its topics are flights$"),
    ({"subscribe": "flight"}, "no topic flight in this bucket; did you mean flights?"),
    ({"subscribe": "__transaction_state"}, "is internal: read it as data with format tidelog.g"),
    ({"assign": '{"flights":[0,3]}'}, "assign: flights has no partition 3, only 1 from 0 on"),
    ({"startingOffsets": '{"flights":{"0":1,"1":1}}'}, "it adds flights-1"),
    ({"endingOffsets": '{"other":{"0":1}}'}, "it lacks flights-0; it adds other-0"),
    ({"startingOffsetsByTimestamp": '{"other":{"0":1}}'}, "it lacks flights-0"),
    ({"endingOffsets": '{"flights":{"0":99}}'}, "endingOffsets: 99 of flights-0 is above"),
    ({"startingOffsets": '{"flights":{"0":99}}'}, "startingOffsets: 99 of flights-0 is above"),
    (
        {"startingOffsets": '{"flights":{"0":3}}', "endingOffsets": '{"flights":{"0":2}}'},
        "startingOffsets: 3 of flights-0 is above its end 2",
    ),
]


def test_wrong_input_is_named(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    for options, message in WRONG:
        given = options if "assign" in options else {"subscribe": TOPIC} | options
        with pytest.raises(InvalidConfiguration, match=message):
            rows_of(spark_world.source(**given))


def test_no_cluster_is_named(spark_world: SparkWorld) -> None:
    with pytest.raises(InvalidConfiguration, match=r"holds no cluster\. Check the address"):
        spark_world.source(subscribe=TOPIC)


def test_expired_records_are_named_or_skipped(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    strict = spark_world.source(subscribe=TOPIC)
    lenient = spark_world.source(subscribe=TOPIC, failOnDataLoss=False)

    async def delete(broker: OneBroker, store: ObjectStore) -> None:
        partition = broker.broker.writes.partitions.named(TOPIC, 0)
        await broker.broker.writes.appender.delete_records(partition, 3)

    spark_world.tell(delete)
    with pytest.raises(DataLost, match="offsets 0 to 2 of flights-0 are not there any more"):
        rows_of(strict)
    assert values(rows_of(lenient)) == COMMITTED[2:]
    assert values(rows_of(spark_world.source(subscribe=TOPIC))) == COMMITTED[2:]


def test_a_topic_that_was_deleted_is_named_or_skipped(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    strict = spark_world.source(subscribe=TOPIC)
    lenient = spark_world.source(subscribe=TOPIC, failOnDataLoss=False)
    planned = [(each, each.partitions()) for each in (reader(strict), reader(lenient))]

    async def delete(broker: OneBroker, store: ObjectStore) -> None:
        topic = broker.broker.membership.metadata.state.topic_named(TOPIC)
        assert topic is not None
        await broker.delete_topic(topic.topic_id)

    spark_world.tell(delete)
    why = "of flights-0 are not there any more: the topic was deleted"
    with pytest.raises(DataLost, match=f"offsets 0 to 11 {why}"):
        rows_of(strict)
    assert rows_of(lenient) == []
    # The tasks of earlier plans meet the deletion when its objects are gone.
    for stored in spark_world.folder.glob("topics/*/partition=0/*.parquet"):
        stored.unlink()
    (first, (part,)), (second, (other,)) = planned
    with pytest.raises(DataLost, match=f"offsets 0 to 11 {why}"):
        read_part(first, part)
    assert read_part(second, other) == []


def reader(source: TidelogSource) -> BatchReader:
    return source.reader(schema_of("value"))


def test_an_object_that_is_lost_is_named(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    source = spark_world.source(subscribe=TOPIC)
    lost = sorted(spark_world.folder.glob("topics/*/partition=0/*.parquet"))[1]
    lost.unlink()
    with pytest.raises(MissingObject, match=f"{lost.name} is corrupt: it is missing"):
        rows_of(source)


def test_a_slot_that_is_lost_behind_a_dead_broker_is_named(spark_world: SparkWorld) -> None:
    """The reader does not take the lost slot for the end of the log (rule C10)."""
    spark_world.tell(history)

    async def cut_off() -> str:
        async with spark_world.here.broker(politely=False) as broker:
            await broker.produce(batch(b"x"))
            lost = wal_key(
                broker.broker.membership.incarnation, broker.broker.writes.wal.durable_end
            )
            await broker.produce(batch(b"y"))
            await broker.produce(batch(b"z"))
            return lost

    lost = run(cut_off)
    (spark_world.folder / lost).unlink()
    with pytest.raises(MissingObject, match=f"object {lost} is corrupt: it is missing"):
        rows_of(spark_world.source(subscribe=TOPIC, includeTail=True))


def test_the_plan_is_in_the_log(spark_world: SparkWorld, caplog: pytest.LogCaptureFixture) -> None:
    spark_world.tell(history)
    source = spark_world.source(subscribe=TOPIC, startingOffsets=f'{{"{TOPIC}":{{"0":5}}}}')
    source.reader(schema_of("value")).partitions()
    (line,) = caplog.messages
    assert line.startswith(f"reads {TOPIC}-0: offsets 5 to ")
    assert "; 1 of 2 segments, " in line
    assert line.endswith(" offsets of the tail")


def test_a_task_reads_on_where_an_object_was_replaced_meanwhile(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    reader = spark_world.source(subscribe=TOPIC, includeTail=True).reader(schema_of("value"))
    parts = reader.partitions()

    async def roll_rest(broker: OneBroker, store: ObjectStore) -> None:
        await roll_and_checkpoint(store, broker)

    spark_world.tell(roll_rest)
    for stale in {key for part in parts for each in part.value for key in each.tail.tail.keys}:
        (spark_world.folder / stale).unlink()
    assert [row["value"] for part in parts for row in read_part(reader, part)] == COMMITTED


def test_a_task_may_stop_after_its_first_rows(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    reader = spark_world.source(subscribe=TOPIC).reader(schema_of("value"))
    (part,) = reader.partitions()
    assert [len(each.segments) for each in part.value] == [2]
    rows = reader.read(part)
    assert next(rows).num_rows == 2
    # A LIMIT ends early like this: the next segment's request is under way, and no reader waits for
    # it.
    assert isinstance(rows, Generator)
    rows.close()


def test_sparks_stand_in_for_no_partition_has_no_rows(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    reader = spark_world.source(subscribe=TOPIC).reader(schema_of("value"))
    assert read_part(reader, InputPartition(None)) == []
    empty = spark_world.source(subscribePattern="none.*").reader(schema_of("value"))
    assert empty.partitions() == []
