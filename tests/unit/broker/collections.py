"""Run collections at once: a broker's collectors without their grace, and a bucket's contents."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.unit.broker.one_broker import OneBroker
from tidelog.broker.collect.collector import Collector
from tidelog.broker.collect.deletion import CollectorMetrics, Deleter
from tidelog.broker.collect.mark_file import MarkFile
from tidelog.broker.collect.staged_batches import StagedBatches
from tidelog.broker.collect.survey_file import SurveyFile
from tidelog.broker.collect.table_collector import TableCollector
from tidelog.broker.collect.wal_inventory import OwnWal, WalInventory
from tidelog.broker.ownership.inherited import InheritedPartitions
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.storage.object_store import ObjectStore


@dataclass
class Collections:
    """The collectors of a broker, with a grace that has always passed by the second look."""

    objects: Collector
    tables: TableCollector
    marks: MarkFile
    deleter: Deleter
    metrics: CollectorMetrics

    async def pass_once(self) -> None:
        """Run one pass, and delete the due objects."""
        await self.objects.collect()
        await self.deleter.drain()

    async def collect(self) -> None:
        """Run two passes: one marks objects, and one deletes them."""
        for _ in range(2):
            await self.pass_once()

    async def collect_tables(self) -> None:
        """Run two passes over tables: one marks objects, and one deletes them."""
        for _ in range(2):
            await self.tables.collect()
            await self.deleter.drain()


def collections(
    one: OneBroker,
    store: ObjectStore,
    grace_seconds: float = 0.0,
    crash_points: CrashPoints = NO_CRASH_POINTS,
) -> Collections:
    """The collections of a running broker."""
    broker = one.broker
    counted = CollectorMetrics()
    deleter = Deleter(store, broker.environment.clock, crash_points, counted, spread_seconds=1.0)
    me = broker.membership.incarnation
    wal = broker.writes.wal
    marks = MarkFile(
        store, broker.environment.clock, broker.environment.offload, me.broker_id, grace_seconds
    )
    offload = broker.environment.offload
    settled = broker.maintenance.merger.merged.is_settled
    return Collections(
        Collector(
            store,
            broker.environment.clock,
            offload,
            broker.membership.metadata,
            me,
            settled,
            lambda: broker.writes.checkpointer.floor,
            WalInventory(
                store, me, lambda: OwnWal(wal.durable_end, wal.newest_slot, wal.metrics.bytes)
            ),
            1.0,
            1.0,
            grace_seconds,
            broker.settings.now().integer("staged.retention.ms"),
            StagedBatches(
                store,
                broker.environment.clock,
                broker.environment.entropy,
                offload,
                broker.membership.metadata.settings,
            ),
            SurveyFile(store, offload),
            marks,
            deleter,
            counted,
        ),
        TableCollector(
            store,
            broker.environment.clock,
            broker.environment.entropy,
            offload,
            broker.membership.metadata,
            me,
            1.0,
            grace_seconds,
            marks,
            deleter,
            counted,
        ),
        marks,
        deleter,
        counted,
    )


async def objects(store: ObjectStore, prefix: str = "") -> list[str]:
    """The objects in the bucket."""
    return [meta.key async for meta in store.list(prefix)]


async def by_folder(store: ObjectStore) -> Counter[str]:
    """How many objects each folder holds."""
    return Counter(key.partition("/")[0] for key in await objects(store))


def hold_tenure_reports(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Partitions that brokers take over from now on are opened when this event is set."""
    opening = asyncio.Event()
    run_at_once = InheritedPartitions.run

    async def run_later(inherited: InheritedPartitions) -> None:
        await opening.wait()
        await run_at_once(inherited)

    monkeypatch.setattr(InheritedPartitions, "run", run_later)
    return opening


async def until_opened(one: OneBroker) -> None:
    """Wait until the metadata log names only the current tenures."""
    broker = one.broker
    changed = asyncio.Event()
    unsubscribe = broker.membership.metadata.subscribe(lambda *_: changed.set())
    while broker.membership.metadata.state.unopened(broker.membership.incarnation.epoch):
        changed.clear()
        await changed.wait()
    unsubscribe()


async def checkpoint(one: OneBroker) -> None:
    """Write a checkpoint of the changes since the last one. The broker may have written it
    already."""
    await one.broker.writes.checkpointer.checkpoint()
    floor = one.broker.writes.checkpointer.floor
    assert floor is not None
    assert floor > one.broker.writes.wal.newest_slot


def forget_memory(one: OneBroker) -> None:
    """Forget the logs in memory, so that consumers are served from the bucket."""
    for key in list(one.broker.reads.path.tail._objects):
        one.broker.reads.path.tail.drop(key)
