"""A bucket that a broker writes, and readers that the tests call as Spark does, without Java.

Spark runs each step in another process, so the tests pickle every value that passes between steps.
"""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.transactional_client import TransactionalClient
from tests.unit.bucket.bucket_world import roll_and_checkpoint, world
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.spark_source.source import TidelogSource
from tidelog.spark_source.stream.stream import StreamReader
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.filesystem import FilesystemStore

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(HEADER),
    "producerId": LongType(),
    "producerEpoch": IntegerType(),
    "transaction": LongType(),
}
DEFAULT = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def schema_of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[name]) for name in names])


def store_at(folder: Path) -> FilesystemStore:
    return FilesystemStore(folder, SystemClock(), SeededEntropy(5))


Story = Callable[[OneBroker, ObjectStore], Awaitable[None]]


class SparkWorld:
    """A bucket in a folder. A broker runs on it only during a story."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.here = world(store_at(folder))
        self.readers: list[StreamReader] = []
        """Readers that are stopped at the end, as Spark stops them."""

    def tell(self, story: Story) -> None:
        async def told() -> None:
            async with self.here.broker() as broker:
                await story(broker, self.here.store)

        run(told)

    def options(self, **options: Any) -> dict[str, str]:
        given = {"store": f"file://{self.folder}"} | options
        return {name: str(value) for name, value in given.items()}

    def source(self, **options: Any) -> TidelogSource:
        return pickled(TidelogSource(self.options(**options)))


@pytest.fixture
def spark_world(tmp_path: Path) -> Iterator[SparkWorld]:
    folder = tmp_path / "bucket"
    folder.mkdir()
    made = SparkWorld(folder)
    yield made
    for reader in made.readers:
        reader.stop()


def created(given: dict[str, str]) -> StructType:
    """The schema of a table, as Spark asks for it at CREATE TABLE."""
    asked = {**given, **{f"option.{name}": value for name, value in given.items()}}
    schema = TidelogSource({**asked, "provider": "tidelog", "owner": "me", "x": "y"}).schema()
    assert isinstance(schema, StructType)
    return StructType.fromJson(schema.jsonValue())


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def rows_of(source: TidelogSource, columns: Iterable[str] = DEFAULT) -> list[dict[str, Any]]:
    """The rows of a DataFrame of this source, task by task."""
    reader = source.reader(schema_of(*columns))
    return [row for part in reader.partitions() for row in read_part(reader, part)]


def read_part(reader: Any, part: InputPartition) -> list[dict[str, Any]]:
    found = pickled(reader).read(pickled(part))
    return [row for rows in found for row in rows.to_pylist()]


def values(rows: Iterable[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


async def transaction(broker: OneBroker, name: str, *sent: bytes) -> TransactionalClient:
    client = TransactionalClient(broker, name)
    assert await client.init() is ErrorCode.NONE
    for value in sent:
        assert await client.send(value) is ErrorCode.NONE
    return client


COMMITTED = [b"plain 0", b"plain 1", b"committed", b"plain 2", b"in the tail", b"decided"]


async def history(broker: OneBroker, store: ObjectStore) -> None:
    """Two segments with an aborted transaction between them. The tail has an aborted and an open
    one."""
    await broker.create_topic()
    await broker.produce(batch(b"plain 0", b"plain 1"))
    await roll_and_checkpoint(store, broker)
    aborted = await transaction(broker, "aborted", b"aborted 1")
    await (await transaction(broker, "committed", b"committed")).commit()
    await aborted.abort()
    await broker.produce(batch(b"plain 2"))
    await roll_and_checkpoint(store, broker)
    await broker.produce(batch(b"in the tail"))
    late = await transaction(broker, "late", b"aborted 2")
    await (await transaction(broker, "decided", b"decided")).commit()
    await late.abort()
    await transaction(broker, "open", b"open")
    await broker.produce(batch(b"above"))
