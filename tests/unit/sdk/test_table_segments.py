"""A table spans segments and tail: the rows of a consumer, by ranges that cross both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch
from tests.unit.bucket.bucket_world import roll_and_checkpoint, world
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import BucketView, NoSuchTopic
from tidelog.client.admin.flush import flush_topic
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy, SystemEntropy
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import TopicPartition
from tidelog.network import SocketNetwork
from tidelog.sdk import table as sdk_table
from tidelog.sdk.admin import Admin
from tidelog.sdk.messages import Message
from tidelog.sdk.producer import Producer
from tidelog.sdk.table import Selection, Table
from tidelog.storage.segment import segment_writer
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.location import open_reader
from tidelog.testing.broker import Broker
from tidelog.workers.offload import InlineOffload

BEGIN_MS = 1_700_000_000_000
PARTITIONS = 2
ROUNDS = 3
ROUND_MS = 1000
"""A time between two rounds. A segment has the times of its round."""
COLUMNS = ["partition", "offset", "value"]


@dataclass(frozen=True)
class Written:
    """A topic with two segments in each partition and a tail behind them."""

    broker: Broker
    topic: str
    folder: Path
    messages: list[Message]
    """The messages that a read_committed consumer gets."""

    @property
    def table(self) -> Table:
        return Table(self.broker.store, self.topic)

    def segments(self, partition: int) -> list[Path]:
        return sorted(self.folder.glob(f"**/partition={partition}/*.parquet"))

    def expected(self, wanted: Callable[[Message], bool]) -> list[tuple[int, int, bytes]]:
        return [(each.partition, each.offset, each.value) for each in self.messages if wanted(each)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Plain, committed and aborted messages in each round. The first two rounds are in segments.
    Behind the last one a transaction stays open in partition 0."""
    folder = tmp_path_factory.mktemp("bucket")
    with (
        Broker(f"file://{folder}") as broker,
        Producer(
            broker.bootstrap, transactional_id="open", transaction_timeout_ms=600_000
        ) as opener,
    ):
        topic = broker.topic(PARTITIONS)
        for number in range(ROUNDS):
            write_round(broker, topic, number)
            if number < ROUNDS - 1:
                flush(broker, topic)
        transaction = opener.transaction()
        transaction.__enter__()
        opener.send(topic, "open", partition=0)
        opener.flush(30)
        with Producer(broker.bootstrap) as plain:
            plain.send(topic, "behind the open one", partition=0)
            plain.send(topic, "at the end", partition=1)
        yield Written(broker, topic, folder, broker.read(topic))
        transaction.__exit__(KeyError, KeyError(), None)


def write_round(broker: Broker, topic: str, number: int) -> None:
    begin_ms = BEGIN_MS + number * ROUND_MS
    with (
        Producer(broker.bootstrap) as plain,
        Producer(broker.bootstrap, transactional_id="decided") as producer,
    ):
        for each in range(40):
            time = begin_ms + (each * 7) % 40
            plain.send(topic, b"%d %d" % (number, each), partition=each % 2, timestamp=time)
        plain.flush(30)
        with producer.transaction():
            for partition in range(PARTITIONS):
                producer.send(topic, "committed", partition=partition, timestamp=begin_ms + 50)
        transaction = producer.transaction()
        transaction.__enter__()
        for partition in range(PARTITIONS):
            producer.send(topic, "aborted", partition=partition, timestamp=begin_ms)
        producer.flush(30)
        transaction.__exit__(KeyError, KeyError(), None)


def flush(broker: Broker, topic: str) -> None:
    """Roll the decided records into segments."""

    async def flushed() -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        async with Client(SocketNetwork(), SystemClock(), [(host, int(port))]) as client:
            for each in await flush_topic(client, topic, 60_000):
                assert each.refusal is None

    # After this read the markers of all decided transactions are in the partitions.
    broker.read(topic)
    asyncio.run(flushed())


def rows(table: Table, **selection: Any) -> list[tuple[int, int, bytes]]:
    found = table.to_arrow(columns=COLUMNS, **selection).to_pylist()
    return [(each["partition"], each["offset"], each["value"]) for each in found]


def test_a_table_spans_segments_and_tail(written: Written) -> None:
    assert [len(written.segments(number)) for number in range(PARTITIONS)] == [2, 2]
    assert rows(written.table) == written.expected(lambda _: True)
    values = {each.value for each in written.messages}
    assert not values & {b"aborted", b"open", b"behind the open one"}
    assert {b"0 0", b"1 1", b"2 2", b"committed", b"at the end"} <= values


def test_any_ranges_of_offsets_times_and_partitions_are_cut_exactly(written: Written) -> None:
    chance = random.Random(3)
    end = max(each.offset for each in written.messages) + 3
    for _ in range(20):
        first, following = sorted(chance.sample(range(end), 2))
        since, until = sorted(chance.sample(range(BEGIN_MS, BEGIN_MS + ROUNDS * ROUND_MS), 2))
        number = chance.randrange(PARTITIONS)
        assert rows(written.table, offsets=(first, following), since=since) == written.expected(
            lambda each: first <= each.offset < following and (each.timestamp or 0) >= since  # noqa: B023
        )
        assert rows(written.table, offsets={number: (first, None)}) == written.expected(
            lambda each: each.partition == number and each.offset >= first  # noqa: B023
        )
        assert rows(
            written.table, partitions=[number], since=since, until=until
        ) == written.expected(
            lambda each: each.partition == number and since <= (each.timestamp or 0) < until  # noqa: B023
        )


@pytest.mark.parametrize(
    ("selection", "needed"),
    [
        ({"offsets": {0: (0, 10)}}, 0),
        ({"since": BEGIN_MS + ROUND_MS, "until": BEGIN_MS + 2 * ROUND_MS, "partitions": [0]}, 1),
        ({"since": BEGIN_MS + 2 * ROUND_MS, "partitions": [0]}, None),
    ],
)
def test_a_range_opens_only_the_segments_that_may_have_its_rows(
    written: Written, tmp_path: Path, selection: Selection, needed: int | None
) -> None:
    expected = rows(written.table, **selection)
    assert expected
    segments = written.segments(0)
    moved = [(path, tmp_path / path.name) for path in segments if path not in segments[needed:][:1]]
    if needed is None:
        moved = [(path, tmp_path / path.name) for path in segments]
    for path, kept in moved:
        path.rename(kept)
    try:
        assert rows(written.table, **selection) == expected
        with pytest.raises(MissingObject, match=moved[0][0].name):
            rows(written.table)
    finally:
        for path, kept in moved:
            kept.rename(path)


class Interrupted(Bucket):
    """A bucket that changes between its first view and the reads."""

    happens: Callable[[BucketView], None] | None = None

    async def view_partitions(self, partitions: Iterable[TopicPartition]) -> BucketView:
        view = await super().view_partitions(partitions)
        happens, self.happens = self.happens, None
        if happens is not None:
            await asyncio.to_thread(happens, view)
        return view


def interrupted(
    store: str, topic: str, happens: Callable[[BucketView], None]
) -> list[tuple[int, bytes]]:
    async def run() -> list[tuple[int, bytes]]:
        clock, entropy = SystemClock(), SystemEntropy()
        reader = open_reader(store, clock, entropy)
        bucket = Interrupted.unread(reader, clock, entropy, InlineOffload())
        assert isinstance(bucket, Interrupted)
        bucket.happens = happens
        try:
            found = await sdk_table.read(bucket, topic, sdk_table.checked({"columns": COLUMNS}))
        finally:
            await reader.close()
        return [(each["offset"], each["value"]) for each in found.to_pylist()]

    return asyncio.run(run())


def test_a_roll_and_more_records_meanwhile_change_nothing(tmp_path: Path) -> None:
    here = world(FilesystemStore(tmp_path, SystemClock(), SeededEntropy(5)))

    async def write(broker: OneBroker) -> None:
        await broker.create_topic()
        await broker.produce(batch(b"0", b"1"))
        await roll_and_checkpoint(here.store, broker)
        await broker.produce(batch(b"2", b"3"))

    async def roll(broker: OneBroker) -> None:
        await broker.produce(batch(b"later"))
        await roll_and_checkpoint(here.store, broker)

    def tell(story: Callable[[OneBroker], Awaitable[None]]) -> None:
        async def told() -> None:
            async with here.broker() as broker:
                await story(broker)

        asyncio.run(told())

    def happens(view: BucketView) -> None:
        (partition,) = view.partitions.values()
        stale = [*partition.tail.keys]
        assert stale
        tell(roll)
        for key in stale:
            (tmp_path / key).unlink()

    tell(write)
    found = interrupted(f"file://{tmp_path}", TOPIC, happens)
    assert found == [(number, b"%d" % number) for number in range(4)]


def test_rows_that_are_deleted_meanwhile_are_in_none_of_its_rows(tmp_path: Path) -> None:
    with Broker(f"file://{tmp_path}") as broker:
        topic = broker.topic()
        broker.produce(topic, [b"0", b"1"])
        flush(broker, topic)
        broker.produce(topic, [b"2", b"3"])
        (segment,) = tmp_path.glob("**/*.parquet")

        def delete(_: BucketView) -> None:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            for deleted in admin.delete_records([Position(topic, 0, 3)]).values():
                deleted.result(30)
            segment.unlink()
            broker.produce(topic, [b"later"])

        # The read begins again, so it returns one snapshot: that after the deletion.
        assert interrupted(broker.store, topic, delete) == [(3, b"3"), (4, b"later")]


def test_within_a_segment_only_row_groups_of_the_range_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 10)
    with Broker(f"file://{tmp_path}") as broker:
        topic = broker.topic()
        with Producer(broker.bootstrap) as producer:
            for number in range(50):
                producer.send(topic, b"%d" % number, timestamp=BEGIN_MS + number)
        flush(broker, topic)
        (segment,) = tmp_path.glob("**/*.parquet")
        metadata = pq.read_metadata(segment)
        assert metadata.num_row_groups == 5
        place = metadata.row_group(0).column(0).data_page_offset
        data = bytearray(segment.read_bytes())
        data[place] ^= 1
        segment.write_bytes(data)
        table = Table(broker.store, topic)
        for selection in ({"offsets": (20, 30)}, {"since": BEGIN_MS + 20, "until": BEGIN_MS + 30}):
            assert [row[1] for row in rows(table, **selection)] == [*range(20, 30)]
        with pytest.raises(Exception, match="corrupt"):
            rows(table)


def test_a_partition_that_cannot_be_proved_right_is_an_error_and_not_left_out(
    tmp_path: Path,
) -> None:
    with Broker(f"file://{tmp_path}") as broker:
        topic = broker.topic()
        broker.produce(topic, [b"0"])
        flush(broker, topic)
        for commit in tmp_path.glob("**/_delta_log/*.json"):
            commit.write_bytes(b"damaged")
        with pytest.raises(CorruptObject, match="_delta_log"):
            Table(broker.store, topic).to_arrow()
        with pytest.raises(CorruptObject, match="_delta_log"):
            broker.inspect(topic)


class Emptied(Bucket):
    """A bucket whose topic is deleted before its partitions are read."""

    happens: Callable[[], None]

    async def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        found = await super().partitions_of(topics)
        self.happens()
        return found


def test_a_topic_that_is_deleted_meanwhile_is_an_error_and_not_empty(tmp_path: Path) -> None:
    with Broker(f"file://{tmp_path}") as broker:
        topic = broker.topic()
        broker.produce(topic, [b"0"])

        async def run() -> None:
            clock, entropy = SystemClock(), SystemEntropy()
            reader = open_reader(broker.store, clock, entropy)
            bucket = Emptied.unread(reader, clock, entropy, InlineOffload())
            assert isinstance(bucket, Emptied)
            bucket.happens = lambda: Admin(broker.bootstrap).delete_topic(topic)
            try:
                await sdk_table.read(bucket, topic, sdk_table.checked({}))
            finally:
                await reader.close()

        with pytest.raises(NoSuchTopic):
            asyncio.run(run())
