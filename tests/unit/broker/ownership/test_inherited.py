"""A start reads the WAL of one dead process, even if many died before it."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.collections import hold_tenure_reports, objects, until_opened
from tests.unit.broker.one_broker import World, batch, run, until
from tidelog.broker.ownership import inherited
from tidelog.broker.ownership.inherited import InheritedPartitions
from tidelog.clock import SystemClock
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.wal.write.checkpoint import list_checkpoints

PARTITIONS = 20


class ReadWals(MemoryStore):
    """Records which WALs are read."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.read: list[str] = []

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if key.startswith("wal/"):
            self.read.append(key)
        return await super().get(key, byte_range)

    def taken(self) -> list[str]:
        """The keys that were read since the last call."""
        found, self.read = self.read, []
        return found


async def values(one: object, partition: int) -> list[bytes | None]:
    return [record.value for record in await one.read_all(partition)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dies", ["opened", "at once"])
def test_the_tenth_start_reads_no_more_than_the_first(dies: str) -> None:
    """Each process writes ten slots of one partition and dies: either when it has opened all
    inherited partitions, or before its first checkpoint, as soon as its images are durable."""
    store = ReadWals()
    here = World(store, wal_linger_ms=0)

    async def story() -> None:
        reads = []
        for life in range(12):
            store.taken()
            async with here.broker(politely=False) as one:
                reads.append(len(store.taken()))
                if life == 0:
                    await one.create_topic(retention_ms="-1", partitions=PARTITIONS)
                for number in range(10):
                    await one.produce(batch(b"%d" % number), life % 2)
                if dies == "opened":
                    await until_opened(one)
        async with here.broker() as one:
            for partition in range(PARTITIONS):
                found = await values(one, partition)
                assert found == [b"%d" % (n % 10) for n in range(60 if partition < 2 else 0)]
        # The first start that finds anything reads the ten slots, twice, and seals the WAL.
        assert reads[1] >= 20
        assert max(reads[2:]) <= 1.2 * reads[1], reads

    run(story)


def test_an_owner_that_wrote_nothing_costs_its_successors_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ReadWals()
    here = World(store, wal_linger_ms=0)
    hold_tenure_reports(monkeypatch)

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1", partitions=PARTITIONS)
            await one.produce(batch(b"a"))
            first = str(one.broker.membership.incarnation)
        for _ in range(10):
            async with here.broker(politely=False) as one:
                died = str(one.broker.membership.incarnation)
            store.taken()
        async with here.broker() as one:
            read = {key.split("/")[1] for key in store.taken()}
            # The start seals the last dead process, and reads nothing of the ones before.
            assert read <= {first, died}
            assert await values(one, 0) == [b"a"]

    run(story)


def test_many_partitions_are_opened_in_groups_by_descending_number_of_tenures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the process dies after a few partitions, the next process has less to read."""
    monkeypatch.setattr(inherited, "PARTITIONS_AT_ONCE_MAX", 3)
    monkeypatch.setattr(inherited, "PAUSE_SECONDS", 3600.0)
    store = ReadWals()
    here = World(store, wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                await one.produce(batch(b"%d" % partition), partition)
        for _ in range(14):
            async with here.broker(politely=False) as one:
                broker = one.broker
                await broker.writes.wal.flush()
                opened = [str(each) for each in broker.writes.partitions if each.opened]
                assert 0 < len(opened) <= 3
        # No checkpoint has these tenures: the metadata log names all tenures of all partitions.
        tenures = broker.membership.metadata.state.tenures(TopicPartition(topic_id, 0))
        assert len(tenures) == 15
        lives = {key.split("/")[1] for key in await objects(store, "wal/")}
        assert len(lives) == 15
        store.taken()
        async with here.broker() as one:
            read = {key.split("/")[1] for key in store.taken()}
            # 20 partitions, three a life: no base is older than 7 lives.
            assert len(read) <= 20 // 3 + 2, sorted(read)
            for partition in range(PARTITIONS):
                assert await values(one, partition) == [b"%d" % partition]

    run(story)


def test_a_partition_that_stays_after_a_refused_move_is_opened_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the metadata log would name its earlier owners, whose WALs stay, until a producer
    writes to it."""
    monkeypatch.setattr(inherited, "PARTITIONS_AT_ONCE_MAX", 1)
    monkeypatch.setattr(inherited, "PAUSE_SECONDS", 0.0)
    here = World(ReadWals(), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1", partitions=3)
            for partition in range(3):
                await one.produce(batch(b"a"), partition)
        monkeypatch.setattr(InheritedPartitions, "run", lambda _: asyncio.Event().wait())
        async with here.broker() as one:
            partitions = one.broker.writes.partitions
            leaving = partitions.find(TopicPartition(topic_id, 1))
            partitions.suspend(leaving)
            opening = asyncio.create_task(one.broker.maintenance.inherited._open_all())
            await until(lambda: sum(each.opened for each in partitions) == 2)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not leaving.opened
            partitions.resume(leaving)
            await opening
            assert leaving.opened
            tenures = one.broker.membership.state().tenures(leaving.log.partition)
            assert len(tenures) == 1

    run(story)


def test_checkpoints_come_by_slots() -> None:
    store = MeteredStore(MemoryStore(SystemClock()), SystemClock())
    here = World(store, wal_linger_ms=0, wal_checkpoint_interval_slots=10)

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(100):
                await one.produce(batch(b"%d" % number))
                await asyncio.sleep(0)
            me = one.broker.membership.incarnation
            checkpoints = await list_checkpoints(store, me)
            assert 5 <= len(checkpoints) <= 10
            assert one.broker.writes.wal.durable_end - checkpoints[-1] <= 20
        async with here.broker() as one:
            assert await values(one, 0) == [b"%d" % number for number in range(100)]

    run(story)
