"""The sink's writers against a broker. The tests call them as Spark does: repeated, lost and mixed
up.

Spark runs each step in another process, so the tests pickle every value that passes between steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from tests.unit.broker.one_broker import TOPIC, OneBroker, run
from tests.unit.broker.sink_world import world
from tests.unit.broker.transactional_client import loaded, read
from tests.unit.bucket.bucket_world import opened
from tests.unit.spark_source.spark_world import created, pickled, schema_of, store_at
from tidelog.bucket.views.bucket import Bucket
from tidelog.client.errors import RequestRefused
from tidelog.client.transactions.sink import ForeignQuery
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.sink import sink
from tidelog.spark_source.sink.sink import SinkError
from tidelog.spark_source.sink.sink_rows import RefusedRow
from tidelog.spark_source.source import TidelogSource
from tidelog.spark_source.states import GroupsSource
from tidelog.storage.object_store import AccessDenied

SCHEMA = schema_of("key", "value", "topic", "partition")


class SinkWorld:
    """One broker, and writers that run in threads, since each has an event loop of its own."""

    def __init__(self, folder: Path, starts: int = 0) -> None:
        """Clusters whose first brokers have other numbers of `starts` have other ids."""
        self.folder = folder
        self.starts = starts
        self.address = ""

    def tell(self, story: Callable[[OneBroker], Awaitable[None]]) -> None:
        async def told() -> None:
            brokers = world(store_at(self.folder))
            brokers.starts = self.starts
            async with brokers.broker() as one:
                await loaded(one)
                await one.create_topic(partitions=2)
                host, port = one.broker.membership.advertised
                self.address = f"{host}:{port}"
                await story(one)

        run(told)

    def source(self, **options: Any) -> TidelogSource:
        given = {
            "store": f"file://{self.folder}",
            "kafka.bootstrap.servers": self.address,
            "transactionalId": "pipeline",
        } | options
        return TidelogSource({name: str(value) for name, value in given.items()})

    async def batch_writer(self, batch_id: int, schema: StructType = SCHEMA, **options: Any) -> Any:
        source = self.source(batchId=batch_id, **options)
        return pickled(await asyncio.to_thread(source.writer, schema, False))

    async def stream_writer(self) -> Any:
        return pickled(await asyncio.to_thread(self.source().streamWriter, SCHEMA, False))


@pytest.fixture
def sink_world(tmp_path: Path) -> SinkWorld:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return SinkWorld(folder)


@pytest.fixture
def as_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Run a task of a streaming query's batch."""

    class Context:
        def __init__(self, query_id: str, batch_id: int) -> None:
            self.found = {"sql.streaming.queryId": query_id, "streaming.sql.batchId": str(batch_id)}

        def getLocalProperty(self, name: str) -> str | None:
            return self.found.get(name)

    def be(query_id: str, batch_id: int) -> None:
        monkeypatch.setattr(TaskContext, "get", lambda: Context(query_id, batch_id))

    return be


def rows(partition: int, *values: bytes, topic: str = TOPIC) -> pa.RecordBatch:
    given = [{"value": each, "topic": topic, "partition": partition} for each in values]
    types = [("key", pa.binary()), ("value", pa.binary())]
    types += [("topic", pa.string()), ("partition", pa.int32())]
    return pa.RecordBatch.from_pylist(given, schema=pa.schema(types))


async def stage(writer: Any, *batches: pa.RecordBatch) -> Any:
    def staged(given: Iterable[pa.RecordBatch]) -> Any:
        return writer.write(iter(given))

    return pickled(await asyncio.to_thread(staged, batches))


def test_a_commit_writes_only_the_tasks_it_names_and_once(sink_world: SinkWorld) -> None:
    async def story(one: OneBroker) -> None:
        writer = await sink_world.batch_writer(0)
        first = await stage(writer, rows(0, b"a", b"b"), rows(1, b"c"))
        await stage(writer, rows(0, b"a", b"b"), rows(1, b"c"))  # another attempt of that task
        second = await stage(writer, rows(0, b"d"))
        empty = await stage(writer)
        assert await read(one, 0) == []
        for _ in range(2):
            await asyncio.to_thread(pickled(writer).commit, [first, second, empty])
            assert await read(one, 0) == [b"a", b"b", b"d"]
            assert await read(one, 1) == [b"c"]
        again = await sink_world.batch_writer(0)
        await asyncio.to_thread(again.commit, [await stage(again, rows(0, b"a"))])
        assert await read(one, 0) == [b"a", b"b", b"d"]
        following = await sink_world.batch_writer(1)
        await asyncio.to_thread(following.commit, [await stage(following, rows(0, b"e"))])
        assert await read(one, 0) == [b"a", b"b", b"d", b"e"]

    sink_world.tell(story)


def test_a_task_of_many_rows_stages_several_objects_whose_order_is_kept(
    sink_world: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "STAGED_BYTES", 1000)
    values = [b"%03d" % number for number in range(200)]

    async def story(one: OneBroker) -> None:
        writer = await sink_world.batch_writer(0)
        message = await stage(writer, rows(0, *values[:120]), rows(0, *values[120:]))
        assert len(message.objects) > 3
        await asyncio.to_thread(writer.commit, [message])
        assert await read(one, 0) == values

    sink_world.tell(story)


def test_a_streams_batches_have_its_numbers_and_query(
    sink_world: SinkWorld, as_task: Callable[[str, int], None]
) -> None:
    async def story(one: OneBroker) -> None:
        as_task("query", 3)
        message = await stage(await sink_world.stream_writer(), rows(0, b"a"))
        for _ in range(2):
            await asyncio.to_thread((await sink_world.stream_writer()).commit, [message], 3)
        with pytest.raises(SinkError, match="says that it has staged"):
            await asyncio.to_thread((await sink_world.stream_writer()).commit, [message], 4)
        (await sink_world.stream_writer()).abort([message, None], 3)
        await asyncio.to_thread((await sink_world.stream_writer()).commit, [], 4)
        as_task("another", 4)
        foreign = await stage(await sink_world.stream_writer(), rows(0, b"b"))
        with pytest.raises(ForeignQuery, match="pipeline belongs to query query, which has comm"):
            await asyncio.to_thread((await sink_world.stream_writer()).commit, [foreign], 4)
        written = await sink_world.batch_writer(9)
        with pytest.raises(ForeignQuery, match="this is query batch"):
            await asyncio.to_thread(written.commit, [await stage(written, rows(0, b"c"))])
        assert await read(one, 0) == [b"a"]

    sink_world.tell(story)


def test_a_stream_that_is_told_no_batch_writes_nothing(sink_world: SinkWorld) -> None:
    async def story(one: OneBroker) -> None:
        writer = await sink_world.stream_writer()
        with pytest.raises(SinkError, match="Spark does not say of which query"):
            writer.write(iter([]))

    sink_world.tell(story)


def test_wrong_rows_fail_their_task(sink_world: SinkWorld) -> None:
    async def story(one: OneBroker) -> None:
        writer = await sink_world.batch_writer(0)
        with pytest.raises(RefusedRow, match=f"partition 2 of topic {TOPIC}, which has 2"):
            await stage(writer, rows(2, b"a"))
        with pytest.raises(RequestRefused, match="topic nowhere, which the sink is to write to"):
            await stage(writer, rows(0, b"a", topic="nowhere"))
        with pytest.raises(SinkError, match="says that it has staged None"):
            writer.commit([None])

    sink_world.tell(story)


def test_a_missing_topic_or_bucket_is_told_before_any_task(sink_world: SinkWorld) -> None:
    async def story(one: OneBroker) -> None:
        with pytest.raises(RequestRefused, match="topic nowhere, which the sink is to write to"):
            await sink_world.batch_writer(0, topic="nowhere")
        with pytest.raises(InvalidConfiguration, match="holds no cluster"):
            await sink_world.batch_writer(0, topic=TOPIC, store=f"file://{sink_world.folder}/no")
        with pytest.raises(RequestRefused, match="topic nowhere"):
            await asyncio.to_thread(sink_world.source(topic="nowhere").streamWriter, SCHEMA, False)

    sink_world.tell(story)


def test_a_store_of_other_brokers_is_told_before_any_task(
    sink_world: SinkWorld, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = SinkWorld(tmp_path / "other", starts=10)

    async def nothing(one: OneBroker) -> None:
        """After this the bucket holds a cluster."""

    async def story(one: OneBroker) -> None:
        store = f"file://{other.folder}"
        batches, stream = sink_world.source(store=store, batchId=0), sink_world.source(store=store)
        for writer in (batches.writer, stream.streamWriter):
            with pytest.raises(InvalidConfiguration, match="give the store of these brokers"):
                await asyncio.to_thread(writer, SCHEMA, False)
        assert not (other.folder / "staged").exists()

    other.tell(nothing)
    sink_world.tell(story)


def test_a_sink_that_may_only_write_needs_no_right_to_read(
    sink_world: SinkWorld, monkeypatch: pytest.MonkeyPatch, as_task: Callable[[str, int], None]
) -> None:
    async def denied(bucket: Bucket) -> None:
        raise AccessDenied("cluster/log", "get is refused")

    monkeypatch.setattr(Bucket, "refresh", denied)

    async def story(one: OneBroker) -> None:
        for writer in (await sink_world.batch_writer(0), await sink_world.stream_writer()):
            as_task("batch", 1)
            assert (await stage(writer, rows(0, b"a"))).objects
        with pytest.raises(RequestRefused, match="topic nowhere, which the sink is to write to"):
            await sink_world.batch_writer(0, topic="nowhere")

    sink_world.tell(story)


def test_the_number_of_the_last_batch_has_no_lag(sink_world: SinkWorld) -> None:
    """The groups' topic, under whose name it is kept, has records of its own."""

    async def story(one: OneBroker) -> None:
        writer = await sink_world.batch_writer(0)
        await asyncio.to_thread(writer.commit, [await stage(writer, rows(0, b"a"))])
        bucket = await opened(store_at(sink_world.folder))
        found = (await GroupsSource.rows(bucket, ["end_offset", "lag"])).to_pylist()
        (number,) = [each for each in found if each["kind"] == "offset"]
        assert (number["group_id"], number["topic"]) == ("pipeline", "__consumer_offsets")
        assert (number["offset"], number["end_offset"], number["lag"]) == (0, None, None)

    sink_world.tell(story)


async def entries(world: SinkWorld, one: OneBroker) -> StructType:
    """The schema of a table whose topic is another one. The table's rows have it too, and so has a
    query that selects from them."""
    await one.create_topic("entries", partitions=2)
    given = {"store": f"file://{world.folder}", "subscribe": "entries", "topic": "entries"}
    given |= {"kafka.bootstrap.servers": world.address, "transactionalId": "entries"}
    return await asyncio.to_thread(created, given)


def test_a_write_that_names_a_store_takes_nothing_from_the_table_of_its_rows(
    sink_world: SinkWorld,
) -> None:
    async def story(one: OneBroker) -> None:
        writer = await sink_world.batch_writer(0, await entries(sink_world, one))
        message = await stage(writer, rows(0, b"a"))
        assert message.purpose.transactional_id == "pipeline"
        await asyncio.to_thread(writer.commit, [message])
        assert await read(one, 0) == [b"a"]

    sink_world.tell(story)


def test_an_insert_of_the_rows_of_another_table_is_refused_unless_it_names_columns(
    sink_world: SinkWorld,
) -> None:
    """Spark hands over the schema of the rows as it is if their columns are those of the table."""

    async def story(one: OneBroker) -> None:
        schema = await entries(sink_world, one)
        writer = await asyncio.to_thread(TidelogSource({"batchId": "0"}).writer, schema, False)
        given = rows(0, b"a", topic="entries")
        read_rows = given.append_column("offset", pa.array([3], pa.int64()))
        with pytest.raises(
            RefusedRow, match=r"name the columns, as in INSERT INTO t \(key, value\)"
        ):
            await stage(writer, read_rows)
        named = given.append_column("offset", pa.nulls(1, pa.int64()))
        assert (await stage(writer, named)).objects
        # Such rows may be written where no table's options are in doubt.
        assert (await stage(await sink_world.batch_writer(0, schema), read_rows)).objects

    sink_world.tell(story)


def test_a_stream_takes_no_options_from_the_table_of_its_rows(sink_world: SinkWorld) -> None:
    async def story(one: OneBroker) -> None:
        schema = await entries(sink_world, one)
        with pytest.raises(InvalidConfiguration, match="the option store is missing"):
            await asyncio.to_thread(TidelogSource({}).streamWriter, schema, False)

    sink_world.tell(story)


def test_columns_are_checked_before_anything_runs(sink_world: SinkWorld) -> None:
    sink_world.address = "127.0.0.1:1"
    with pytest.raises(InvalidConfiguration, match="rows have no topic"):
        asyncio.run(sink_world.batch_writer(0, schema_of("key", "value")))
    columns = schema_of("value", "offset")
    columns["offset"].name = "partition"
    with pytest.raises(InvalidConfiguration, match="column partition is bigint"):
        asyncio.run(sink_world.batch_writer(0, columns, topic=TOPIC))
