"""Streams, as Spark drives them: offsets, limits, restarts, new partitions, loss."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch
from tests.unit.broker.transactional_client import loaded
from tests.unit.bucket.bucket_world import roll_and_checkpoint
from tests.unit.spark_source.spark_world import (
    COMMITTED,
    SparkWorld,
    history,
    pickled,
    read_part,
    rows_of,
    schema_of,
    spark_world,
    transaction,
    values,
)
from tidelog.bucket.views.changes import METADATA_TURN
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.ranges import DataLost
from tidelog.spark_source.stream.progress import Checkpoint
from tidelog.spark_source.stream.stream import StreamReader
from tidelog.storage.object_store import ObjectStore

__all__ = ["spark_world"]

ALL = ReadAllAvailable()


class Query:
    """Calls a reader in Spark's order. Its log outlives the reader."""

    def __init__(self, world: SparkWorld, **options: Any) -> None:
        self._world = world
        chosen = {} if "subscribePattern" in options else {"subscribe": TOPIC}
        self._options = chosen | {"startingOffsets": "earliest"} | options
        self.log: list[Checkpoint] = []
        self.reader = self._reader()
        self._seconds = 0.0

    def _reader(self) -> StreamReader:
        reader = self._world.source(**self._options).streamReader(schema_of("value"))
        self._world.readers.append(reader)
        return reader

    def restart(self) -> None:
        """The driver restarts as another process."""
        self.reader.stop()
        self.reader = self._reader()

    @property
    def start(self) -> Checkpoint:
        return self.log[-1] if self.log else self.reader.initialOffset()

    def trigger(self) -> list[bytes] | None:
        """The rows of one batch, or None if there is no new batch."""
        start = self.start
        watcher = self.reader._watcher
        if watcher is not None:
            # A busy machine's pauses do not count: only `look` lets time pass.
            watcher._asked_at = watcher.session.clock.monotonic() - self._seconds
        self._seconds = 0.0
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if self.log and end == start:
            return None
        begin = self.start
        self.log.append(pickled(end))
        return self.read(begin, end)

    def repeat(self) -> list[bytes]:
        """The rows of the last batch again, as Spark asks when it does not know whether the batch
        was done."""
        begin = self.log[-2] if len(self.log) > 1 else self.reader.initialOffset()
        return self.read(begin, self.log[-1])

    def read(self, start: Checkpoint, end: Checkpoint) -> list[bytes]:
        parts = self.reader.partitions(start, end)
        second = self._reader()
        return [row["value"] for part in parts for row in read_part(second, part)]

    def look(self) -> None:
        """The next trigger comes as if two seconds had passed."""
        self._seconds = 2.0


async def one_more(broker: OneBroker, store: ObjectStore) -> None:
    await broker.produce(batch(b"more"))


def test_a_stream_reads_committed_records_and_waits_for_more(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(2))
    query = Query(spark_world)
    assert query.trigger() == []
    assert query.trigger() == [b"0", b"1"]
    assert query.trigger() is None
    spark_world.tell(one_more)
    assert query.trigger() is None
    query.look()
    assert query.trigger() == [b"more"]
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert report == query.log[-1]
    assert report[TOPIC]["offsets"] == {"0": 3}


def test_a_start_above_the_end_is_refused_before_the_first_batch(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(2))
    query = Query(spark_world, startingOffsets='{"flights":{"0":3}}')
    with pytest.raises(InvalidConfiguration, match="startingOffsets: 3 of flights-0 is above 2"):
        query.trigger()


def topic_of(records: int, **options: int) -> Any:
    async def story(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic(**options)
        await broker.produce(batch(*(b"%d" % number for number in range(records))))

    return story


def requests(query: Query) -> int:
    assert query.reader._watcher is not None
    statistics = query.reader._watcher.session.statistics
    return sum(each.requests for _, each in statistics.operations())


@pytest.mark.parametrize("tail", [True, False])
def test_an_idle_stream_costs_a_request_a_second(spark_world: SparkWorld, tail: bool) -> None:
    async def two_topics(broker: OneBroker, store: ObjectStore) -> None:
        await topic_of(3, partitions=2)(broker, store)
        await broker.create_topic("fares", partitions=2)
        await broker.produce(batch(b"fare"), topic="fares")
        await roll_and_checkpoint(store, broker)

    spark_world.tell(two_topics)
    query = Query(spark_world, subscribe=f"{TOPIC},fares", includeTail=tail)
    while query.trigger() is None or len(query.log) < 2:
        query.look()
    # The stream learns once that nothing is new.
    for _ in range(2):
        query.look()
        assert query.trigger() is None
    for _ in range(3 * METADATA_TURN):
        before = requests(query)
        query.look()
        for _ in range(10):
            assert query.trigger() is None
        assert requests(query) == before + 1


@pytest.mark.parametrize("tail", [True, False])
def test_an_idle_stream_hears_of_new_records(spark_world: SparkWorld, tail: bool) -> None:
    spark_world.tell(topic_of(1))
    query = Query(spark_world, includeTail=tail)
    query.trigger()
    found = []
    for number in range(4):

        async def more(broker: OneBroker, store: ObjectStore, number: int = number) -> None:
            # Each `tell` runs a new incarnation, which has a new WAL.
            await broker.produce(batch(b"more %d" % number))
            await roll_and_checkpoint(store, broker)

        spark_world.tell(more)
        for _ in range(4):
            query.look()
            found += query.trigger() or []
    assert found == [b"0", *(b"more %d" % number for number in range(4))]


def test_a_restarted_stream_repeats_its_batch_and_goes_on(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    query = Query(spark_world, maxOffsetsPerTrigger=2)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(2)
    found = []
    while (rows := query.trigger()) is not None:
        found += rows
        query.restart()
        assert query.repeat() == rows

        async def roll(broker: OneBroker, store: ObjectStore) -> None:
            await roll_and_checkpoint(store, broker)

        spark_world.tell(roll)
        assert query.repeat() == rows
    assert found == COMMITTED


def test_the_first_batch_is_empty_so_that_a_repeated_one_misses_nothing(
    spark_world: SparkWorld,
) -> None:
    spark_world.tell(topic_of(2))
    query = Query(spark_world, startingOffsets="latest")
    assert query.trigger() == []
    spark_world.tell(one_more)
    # The driver died before it committed its first batch, and latest is a later offset by now.
    query.restart()
    assert query.repeat() == []
    assert query.trigger() == [b"more"]


def test_available_now_reads_to_the_end_at_its_start_and_no_further(
    spark_world: SparkWorld,
) -> None:
    spark_world.tell(topic_of(5))
    query = Query(spark_world, maxOffsetsPerTrigger=2, minOffsetsPerTrigger=2)
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == []
    spark_world.tell(one_more)
    query.look()
    found = []
    while (rows := query.trigger()) is not None:
        found.append(rows)
        query.look()
    assert found == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == [b"more"]
    assert query.trigger() is None


def test_available_now_begins_within_what_it_reads(spark_world: SparkWorld) -> None:
    """Records, and a topic of the pattern, come between the end and the beginning of the query."""
    spark_world.tell(topic_of(2))
    query = Query(spark_world, startingOffsets="latest", subscribePattern="f.*")
    query.reader.prepareForTriggerAvailableNow()

    async def later(broker: OneBroker, store: ObjectStore) -> None:
        await broker.produce(batch(b"more"))
        await broker.create_topic("fares")
        await broker.produce(batch(b"fare"), topic="fares")

    spark_world.tell(later)
    assert query.trigger() == []
    query.look()
    assert query.trigger() is None
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == []
    # Partitions come in the order of their topics' random ids.
    assert sorted(query.trigger() or []) == [b"fare", b"more"]


def test_small_batches_wait_for_more_until_they_are_overdue(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(3))
    query = Query(spark_world, minOffsetsPerTrigger=2, maxTriggerDelay="10m")
    assert query.reader.getDefaultReadLimit() == ReadMinRows(2)
    assert query.trigger() == []
    assert query.trigger() == [b"0", b"1", b"2"]
    spark_world.tell(one_more)
    query.look()
    assert query.trigger() is None
    assert query.reader.latestOffset(query.start, ALL) != query.start
    query.reader._triggered_at -= 601
    assert query.trigger() == [b"more"]


def test_new_topics_of_a_pattern_are_read_from_their_beginning(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(1))
    query = Query(spark_world, startingOffsets="latest", subscribePattern="f.*")
    assert query.trigger() == []

    async def another(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic("fares")
        await broker.produce(batch(b"fare"), topic="fares")

    spark_world.tell(another)
    query.look()
    assert query.trigger() == []
    assert query.trigger() == [b"fare"]
    assert sorted(query.log[-1]) == ["fares", TOPIC]


def test_a_new_partitions_first_batch_misses_nothing_when_it_is_repeated(
    spark_world: SparkWorld,
) -> None:
    """Retention takes records of a new topic between a batch's plan and its repetition."""
    spark_world.tell(topic_of(1))
    query = Query(spark_world, subscribePattern="f.*")
    assert query.trigger() == []
    assert query.trigger() == [b"0"]

    async def another(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic("fares")
        await broker.produce(batch(b"1", b"2", b"3"), topic="fares")

    async def delete(broker: OneBroker, store: ObjectStore) -> None:
        partition = broker.broker.writes.partitions.named("fares", 0)
        await broker.broker.writes.appender.delete_records(partition, 2)

    spark_world.tell(another)
    query.look()
    while not query.trigger():
        pass
    query.restart()
    assert query.repeat() == [b"1", b"2", b"3"]
    spark_world.tell(delete)
    query.restart()
    with pytest.raises(DataLost, match="offsets 0 to 1 of fares-0 are not there any more"):
        query.repeat()


def test_a_new_partition_that_waits_for_more_records_misses_none(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(3))
    query = Query(spark_world, subscribePattern="f.*", minOffsetsPerTrigger=3)
    assert query.trigger() == []
    assert query.trigger() == [b"0", b"1", b"2"]

    async def another(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic("fares")
        await broker.produce(batch(b"1", b"2"), topic="fares")

    async def delete(broker: OneBroker, store: ObjectStore) -> None:
        partition = broker.broker.writes.partitions.named("fares", 0)
        await broker.produce(batch(b"3", b"4", b"5"), topic="fares")
        await broker.broker.writes.appender.delete_records(partition, 1)

    spark_world.tell(another)
    query.look()
    while query.trigger() is not None:
        pass
    spark_world.tell(delete)
    query.look()
    with pytest.raises(DataLost, match="offsets 0 to 0 of fares-0 are not there any more"):
        query.trigger()


def test_lost_records_are_named_or_skipped(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(5))
    query = Query(spark_world, maxOffsetsPerTrigger=1)
    query.trigger()
    assert query.trigger() == [b"0"]

    async def delete(broker: OneBroker, store: ObjectStore) -> None:
        partition = broker.broker.writes.partitions.named(TOPIC, 0)
        await broker.broker.writes.appender.delete_records(partition, 3)

    spark_world.tell(delete)
    query.look()
    query.restart()
    with pytest.raises(DataLost, match="offsets 1 to 1 of flights-0 are not there any more"):
        query.trigger()
    lenient = Query(spark_world, failOnDataLoss=False)
    lenient.log = query.log[:2]
    assert lenient.trigger() == [b"3", b"4"]


def test_a_stream_that_leaves_the_tail_out_from_now_on_has_lost_nothing(
    spark_world: SparkWorld,
) -> None:
    spark_world.tell(topic_of(3))
    query = Query(spark_world)
    query.trigger()
    assert query.trigger() == [b"0", b"1", b"2"]
    of_table = Query(spark_world, includeTail=False)
    of_table.log = query.log
    # The batch was logged with its end, so its rows are the same, in the tail or not.
    assert of_table.repeat() == [b"0", b"1", b"2"]
    assert of_table.trigger() is None

    async def roll(broker: OneBroker, store: ObjectStore) -> None:
        await broker.produce(batch(b"more"))
        await roll_and_checkpoint(store, broker)

    spark_world.tell(roll)
    of_table.look()
    assert of_table.trigger() == [b"more"]


def test_a_log_that_begins_within_an_open_transaction_is_empty_until_that_ends(
    spark_world: SparkWorld,
) -> None:
    async def cut(broker: OneBroker, store: ObjectStore) -> None:
        await broker.create_topic()
        await broker.produce(batch(b"plain"))
        await transaction(broker, "open", b"1", b"2")
        await broker.broker.writes.appender.delete_records(
            broker.broker.writes.partitions.named(TOPIC, 0), 2
        )

    spark_world.tell(cut)
    query = Query(spark_world)
    query.trigger()
    assert query.trigger() is None
    assert values(rows_of(spark_world.source(subscribe=TOPIC))) == []
    rolled = spark_world.source(subscribe=TOPIC, includeTail=False)
    assert values(rows_of(rolled)) == []

    async def end(broker: OneBroker, store: ObjectStore) -> None:
        # The next producer of the transactional id ends the open transaction.
        await loaded(broker)
        await (await transaction(broker, "open", b"new")).commit()

    spark_world.tell(end)
    query.look()
    assert query.trigger() == [b"new"]


def test_another_topic_of_the_same_name_is_not_taken_for_the_first(
    spark_world: SparkWorld,
) -> None:
    spark_world.tell(topic_of(1))
    query = Query(spark_world)
    query.trigger()
    query.trigger()

    async def again(broker: OneBroker, store: ObjectStore) -> None:
        topic = broker.broker.membership.metadata.state.topic_named(TOPIC)
        assert topic is not None
        await broker.delete_topic(topic.topic_id)
        await broker.create_topic()
        await broker.produce(batch(b"new 1", b"new 2"))

    spark_world.tell(again)
    query.look()
    with pytest.raises(DataLost, match="topic flights was deleted and created again"):
        query.trigger()
    lenient = Query(spark_world, failOnDataLoss=False)
    lenient.log = query.log
    assert lenient.trigger() == []
    assert lenient.trigger() == [b"new 1", b"new 2"]


def test_a_checkpoint_of_another_source_is_refused(spark_world: SparkWorld) -> None:
    spark_world.tell(topic_of(1))
    query = Query(spark_world)
    with pytest.raises(InvalidConfiguration, match="has offsets of another source"):
        query.reader.latestOffset({"t": {"0": 5}}, ALL)
