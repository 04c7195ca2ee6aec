"""All work on a partition's log at once: producers, rolls, deletions, retention, compaction,
merges, checkpoints, collections, readers. No kind of work may take a step of another for a
fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from tests.unit.broker.collections import collections
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, run
from tidelog.broker.roll import segment_builder
from tidelog.clock import SystemClock
from tidelog.identifiers import Offset
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.storage.object_store import Buffer, ByteRange, Condition, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore

pytestmark = pytest.mark.slow

KEYED = "keyed"
BATCHES = 150
SETTINGS = {
    "wal_linger_ms": 0,
    "wal_objects_max": 4,
    "roll_bytes": 3000,
    "roll_min_bytes": 0,
    # The test requests all periodic work itself, in any order.
    "log_collect_interval_ms": 10**8,
    "log_collect_tables_interval_ms": 10**8,
    "log_retention_check_interval_ms": 10**7,
    "log_cleaner_backoff_ms": 10**7,
}


class DawdlingStore(MemoryStore):
    """Lets other tasks go on within each request, for a moment or for some time."""

    def __init__(self, random: Random) -> None:
        super().__init__(SystemClock())
        self._random = random

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        stored = await super().get(key, byte_range)
        await self._dawdle()
        return stored

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        await self._dawdle()
        return await super().put(key, data, condition)

    async def _dawdle(self) -> None:
        for _ in range(self._random.choice((0, 1, 3, 10, 30))):
            await asyncio.sleep(0)


class Story:
    """One broker, two topics of one partition each, and the acknowledged records by topic and
    offset."""

    def __init__(self, one: OneBroker, random: Random) -> None:
        self.one = one
        self.random = random
        self.written: dict[str, dict[int, bytes]] = {TOPIC: {}, KEYED: {}}
        self.is_over = False

    async def produce(self, topic: str) -> None:
        for number in range(BATCHES):
            count = self.random.randrange(1, 5)
            values = [b"%d %d" % (number, each) for each in range(count)]
            key = b"k%d" % self.random.randrange(8)
            records = encode_batch([NewRecord(value, key) for value in values])
            answer = await self.one.produce(records, topic=topic)
            assert answer.error_code == ErrorCode.NONE
            found = dict(enumerate(values, answer.base_offset))
            self.written[topic] |= found

    async def read(self, topic: str) -> None:
        """Read from the log's start to its end. Every record must be right. The topic without
        compaction must have all records that were not deleted meanwhile."""
        expected = dict(self.written[topic])
        begin = offset = (await self.one.offsets(-2, topic=topic)).offset
        found: dict[int, bytes | None] = {}
        while True:
            answer = await self.one.fetch(offset, topic=topic, bytes_max=2000)
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                # A deletion has overtaken the reader.
                return
            assert answer.error_code == ErrorCode.NONE, answer
            records = [
                each
                for each in decode_records(b"".join(map(bytes, answer.records or [])))
                if each.offset >= offset
            ]
            if not records:
                break
            found |= {each.offset: each.value for each in records}
            offset = records[-1].offset + 1
        for at, value in found.items():
            assert value == self.written[topic].get(at, value)
        start = max(begin, (await self.one.offsets(-2, topic=topic)).offset)
        if topic == TOPIC:
            assert [at for at in expected if start <= at < offset and at not in found] == []

    async def delete(self) -> None:
        broker = self.one.broker
        log = broker.writes.partitions.named(TOPIC, 0).log
        if log.high_watermark > log.log_start:
            end = min(log.high_watermark, log.log_start + 20)
            offset = Offset(self.random.randrange(log.log_start, end + 1))
            await broker.writes.appender.delete_records(
                broker.writes.partitions.named(TOPIC, 0), offset
            )

    async def flush(self) -> None:
        broker = self.one.broker
        topic = self.random.choice((TOPIC, KEYED))
        await broker.topic_tables.roller.flush(broker.writes.partitions.named(topic, 0))

    async def again(self, work: Callable[[], Awaitable[object]]) -> None:
        """Read until the producers are done."""
        while not self.is_over:
            await work()
            for _ in range(self.random.randrange(100)):
                await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_lost_and_no_client_fails_beside_all_background_work(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    bounds = segment_builder.SegmentBounds(raw_bytes_max=4000, piece_bytes_max=300)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    monkeypatch.setattr("tidelog.broker.roll.roller.SWEEP_SECONDS", 0.01)
    random = Random(seed)
    here = World(DawdlingStore(random), tail_cache_bytes=(0, 20_000)[seed % 2], **SETTINGS)

    async def story() -> None:
        async with here.broker() as one:
            broker = one.broker
            await one.create_topic(TOPIC, retention_bytes="6000", segment_bytes="3000")
            await one.create_topic(KEYED, cleanup_policy="compact", min_cleanable_dirty_ratio="0.1")
            told = Story(one, random)
            collectors = collections(one, here.store, grace_seconds=0.1)
            works: list[Callable[[], Awaitable[object]]] = [
                lambda: told.read(TOPIC),
                lambda: told.read(KEYED),
                told.delete,
                told.flush,
                broker.topic_tables.cleaner.clean_one,
                broker.topic_tables.cleaner.retention.apply,
                broker.writes.checkpointer.checkpoint,
                broker.maintenance.merger.maintain,
                collectors.objects.collect,
            ]
            async with asyncio.TaskGroup() as tasks:
                for work in works:
                    tasks.create_task(told.again(work))
                await asyncio.gather(told.produce(TOPIC), told.produce(KEYED))
                told.is_over = True
            await told.read(TOPIC)
            assert not one.run.done()
            assert (broker.writes.partitions.faulty, broker.topic_tables.roller.faults()) == (
                (),
                [],
            )
            assert (broker.topic_tables.cleaner.metrics.failures, collectors.metrics.failures) == (
                0,
                0,
            )
            assert broker.topic_tables.roller.metrics.commits > 0
            assert broker.maintenance.merger.metrics.merges > 0

    run(story)
