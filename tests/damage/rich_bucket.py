"""A bucket with several objects of every kind that Tidelog writes, and the records in it.

Brokers run one after the other and are cut off. So there are seals, tenures that never opened, and
images of partitions that were given away. Each broker deletes superfluous objects in the middle of
its life, so that few records are stored twice. The lease stamps the last broker's objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch
from uuid import UUID

from tests.unit.broker.collections import collections
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch
from tests.unit.broker.rolled import flush
from tests.unit.broker.sink_world import Sink
from tests.unit.broker.transactional_client import (
    GROUP,
    TransactionalClient,
    committed_offset,
    find,
    loaded,
)
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import (
    BrokerRegistered,
    LeaseResumed,
    PartitionMoved,
)
from tidelog.identifiers import BrokerId, Epoch, TopicPartition
from tidelog.records.batch import iterate_batches
from tidelog.records.records import decode_batch
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.image_codec import encode_images

SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "coordinator_snapshot_interval_records": 5,
    "wal_objects_max": 2,
    "wal_linger_ms": 0,
}
LIVES = 3
BATCHES = 6
QUIET, MOVED, SUNK = "quiet", "moved", "sunk"
PARTITIONS = {TOPIC: 2, QUIET: 3, MOVED: 3, SUNK: 1}
METADATA_ENTRIES = 650
"""Enough entries for three snapshots."""


@dataclass
class Truth:
    """The acknowledged records and offsets."""

    records: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """By partition, like `flights-0`: values by offset, without markers."""
    committed_offset: int = -1
    """The committed offset of the group."""


@dataclass
class RichBucket:
    """All objects, and the records that they hold together."""

    objects: dict[str, bytes]
    truth: Truth
    deleted: dict[str, bytes] = field(default_factory=dict)
    """Objects that collectors have deleted."""

    def store(self) -> MemoryStore:
        """A store with these objects."""
        store = MemoryStore(SystemClock())
        for key, data in self.objects.items():
            finish(store, key, data)
        return store


def finish(store: MemoryStore, key: str, data: bytes) -> None:
    """Put an object without a loop: the memory store never waits."""
    coroutine = store.put(key, data)
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("the memory store waited")


def world(store: MemoryStore, broker_id: int = 0) -> World:
    here = World(store, **SETTINGS)
    here.broker_id = BrokerId(broker_id)
    # The incarnations differ from those that wrote the bucket.
    here.starts = 100 * (broker_id + 1)
    return here


@contextmanager
def small_intervals() -> Iterator[None]:
    """Checkpoints of tables after a few commits, merges without pauses."""
    with (
        patch("tidelog.storage.table.table_log.CHECKPOINT_COMMITS", 4),
        patch("tidelog.broker.collect.merger.OBJECTS_A_SECOND_MIN", 1e9),
    ):
        yield


async def build() -> RichBucket:
    """Write the bucket."""
    store = MemoryStore(SystemClock())
    topics: dict[str, UUID] = {}
    seen: dict[str, bytes] = {}
    truth = Truth()
    with small_intervals():
        for life in range(LIVES):
            here = world(store)
            here.starts += life
            async with here.broker(politely=False) as one:
                if life == 0:
                    for name, partitions in PARTITIONS.items():
                        topics[name] = await one.create_topic(name, partitions, retention_ms="-1")
                    await quiet_records(one)
                await loaded(one)
                await some_life(one, Sink(here, seed=life), topics[SUNK], life, seen)
                if life == LIVES - 1:
                    truth = await read_truth(one)
                    await give_away(one, store, topics[MOVED])
                await one.broker.membership.lease.renew()
    objects = await contents(store)
    deleted = {key: data for key, data in seen.items() if key not in objects}
    return RichBucket(objects, truth, deleted)


async def contents(store: ObjectStore) -> dict[str, bytes]:
    """Every object."""
    return {meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list()}


async def quiet_records(one: OneBroker) -> None:
    """One record in each of two partitions that get no more records. The third partition stays
    empty."""
    for number in range(2):
        await one.produce(batch(b"quiet %d" % number), number, topic=QUIET)
    for number in range(3):
        await one.produce(batch(b"moved %d" % number), number, topic=MOVED)


async def some_life(
    one: OneBroker, sink: Sink, sunk: UUID, life: int, seen: dict[str, bytes]
) -> None:
    """Records in slots, merged objects, segments and staged objects; transactions, groups."""
    await find(one, GROUP, 0)
    good, bad = (TransactionalClient(one, name) for name in ("good", "bad"))
    for client in (good, bad):
        assert (error := await client.init()) == 0, error
    for number in range(BATCHES):
        value = b"%d.%d" % (life, number)
        await one.produce(batch(value, b"plain"))
        for client, keeps in ((good, True), (bad, False)):
            assert await client.send(value + b" transactional", 1) == 0
            if keeps:
                assert await client.commit_offset(life * BATCHES + number) == 0
            assert await client.end(commit=keeps) == 0
        await flush(one)
    await one.broker.writes.checkpointer.checkpoint()
    await one.broker.maintenance.merger.maintain()
    await one.broker.writes.wal.flush()
    await one.broker.writes.tenure_reports.flush()
    seen |= await contents(one.broker.environment.store)
    collecting = collections(one, one.broker.environment.store)
    await collecting.collect()
    await collecting.collect_tables()
    staged = await sink.stage(sunk, life, {0: [b"sunk %d" % life]})
    await sink_commit(sink, one, life, staged)
    await one.produce(batch(b"last of %d" % life), 1)
    await one.broker.coordination.coordinators.snapshot()
    epoch = one.broker.membership.incarnation.epoch
    while one.broker.membership.metadata.state.sequence < METADATA_ENTRIES * (life + 1) // LIVES:
        await one.broker.membership.metadata.append(epoch, lambda _: (LeaseResumed(epoch),))
    await one.broker.topic_tables.tables.maintain_due()
    maintenance = one.broker.maintenance
    await maintenance.collector.collect()
    await maintenance.marks.store(maintenance.deleter.waiting_slots)


async def sink_commit(sink: Sink, one: OneBroker, life: int, staged: UUID) -> None:
    """One batch of the sink, into a separate topic."""
    from tests.unit.broker.sink_world import FAST, QUERY, SINK, client_of
    from tidelog.client.groups.admin import Place
    from tidelog.client.transactions.sink import SinkBatch, commit

    found = SinkBatch(SINK, QUERY, life, {Place(SUNK, 0): [staged]})
    async with client_of(one) as client:
        await commit(client, SystemClock(), sink.entropy, found, FAST)


async def give_away(one: OneBroker, store: MemoryStore, topic_id: UUID) -> None:
    """Give three partitions to a broker that never opens them, so that hand-over images are their
    bases.

    The receiver's process has ended when the next broker starts, which takes over from it.
    """
    broker = one.broker
    epoch = broker.membership.incarnation.epoch
    process = broker.membership.state().brokers[epoch].process
    number = await broker.membership.metadata.append(
        None, lambda _: (BrokerRegistered(BrokerId(9), "elsewhere", 9092, process),)
    )
    for partition in range(PARTITIONS[MOVED]):
        log = broker.writes.partitions.find(TopicPartition(topic_id, partition)).log
        key = f"handover/{UUID(int=partition + 1)}"
        await store.put(key, encode_images([log.image()]))
        moved = PartitionMoved(topic_id, partition, Epoch(number), key)
        await broker.membership.metadata.append(epoch, lambda _, moved=moved: (moved,))  # type: ignore[misc]


async def read_truth(one: OneBroker) -> Truth:
    """All records that a read_uncommitted consumer sees, and the group's offset."""
    records = {
        f"{topic}-{number}": {
            offset: value
            for start in [(await one.offsets(-2, number, topic=topic)).offset]
            for offset, value in (await read_from(one, topic, number, start)).items()
        }
        for topic, partitions in PARTITIONS.items()
        for number in range(partitions)
    }
    return Truth(records, await committed_offset(one))


async def read_from(one: OneBroker, topic: str, number: int, offset: int) -> dict[int, bytes]:
    """Values by offset, to the end, without markers."""
    found: dict[int, bytes] = {}
    while True:
        answer = await one.fetch(offset, number, topic=topic)
        assert answer.error_code == 0, answer
        data = b"".join(answer.records or ())
        if not data:
            return found
        for position, header in iterate_batches(data):
            if not header.is_control:
                for record in decode_batch(data, position, header):
                    found[record.offset] = record.value or b""
            offset = header.last_offset + 1
