"""Collections at once: a broker's collectors without their grace, and what is in a bucket."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.unit.broker.one_broker import OneBroker
from tidelog.broker.collector import Collector
from tidelog.broker.deletion import CollectorMetrics, Deleter
from tidelog.broker.staged_batches import StagedBatches
from tidelog.broker.table_collector import TableCollector
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.storage.object_store import ObjectStore


@dataclass
class Collections:
    """The collectors of a broker, with a grace that has always passed by the second look."""

    objects: Collector
    tables: TableCollector
    metrics: CollectorMetrics

    async def collect(self) -> None:
        """Mark, then delete."""
        for _ in range(2):
            await self.objects.collect()

    async def collect_tables(self) -> None:
        """Mark, then delete."""
        for _ in range(2):
            await self.tables.collect()


def collections(
    one: OneBroker,
    store: ObjectStore,
    grace_seconds: float = 0.0,
    crash_points: CrashPoints = NO_CRASH_POINTS,
) -> Collections:
    """Of a broker that runs."""
    broker = one.broker
    counted = CollectorMetrics()
    deleter = Deleter(store, broker.clock, crash_points, counted)
    me = broker.incarnation
    offload = broker._offload
    settled = broker.upkeep.merger.merged.is_settled
    return Collections(
        Collector(
            store,
            broker.clock,
            offload,
            broker.metadata,
            me,
            settled,
            1.0,
            grace_seconds,
            broker.settings.integer("staged.retention.ms"),
            StagedBatches(store, broker.clock, broker.entropy, offload, broker.metadata.settings),
            deleter,
            counted,
        ),
        TableCollector(
            store,
            broker.clock,
            broker.entropy,
            offload,
            broker.metadata,
            me,
            1.0,
            grace_seconds,
            deleter,
            counted,
        ),
        counted,
    )


async def objects(store: ObjectStore, prefix: str = "") -> list[str]:
    """What is in the bucket."""
    return [meta.key async for meta in store.list(prefix)]


async def by_folder(store: ObjectStore) -> Counter[str]:
    """How many objects each folder holds."""
    return Counter(key.partition("/")[0] for key in await objects(store))


async def checkpoint(one: OneBroker) -> None:
    """Write one, of what has come since the last."""
    assert await one.broker._checkpointer.checkpoint() is not None


def forget_memory(one: OneBroker) -> None:
    """So that consumers are served from the bucket."""
    for key in list(one.broker._reads.tail._objects):
        one.broker._reads.tail.drop(key)
