"""The state that a partition's gift leaves when its caller was cancelled."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from tests.unit.broker.cold_log import PARTITION
from tidelog.broker.append.write_path import WritePath
from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.coordinator.cluster.log.log_view import LogAbandoned
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.identifiers import Epoch, TopicPartition


class AbandonedLog:
    """A metadata log whose append ends with the incarnation if `may_end` is set."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def append(self, *_: object) -> NoReturn:
        self.has_begun.set()
        await self.may_end.wait()
        raise LogAbandoned("it was tried for 18 s")


class Writes:
    """The write path of a broker with one partition."""

    def __init__(self) -> None:
        self.partitions = self
        self.wal = SimpleNamespace(incarnation=SimpleNamespace(epoch=Epoch(1)), durable_end=7)
        log = SimpleNamespace(partition=PARTITION, leader_epoch=0, next_offset=3)
        self.partition = SimpleNamespace(log=log, fault=None)
        self.withheld: list[object] = []

    def get(self, _: TopicPartition) -> object:
        return self.partition

    def suspend(self, partition: object) -> None:
        self.withheld.append(partition)

    def resume(self, partition: object) -> None:
        self.withheld.remove(partition)

    async def durable(self) -> None:
        """All slots are durable."""


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_end_of_the_incarnation_reaches_a_waiting_caller(is_cancelled: bool) -> None:
    async def story() -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unhandled.append(what))
        log, writes = AbandonedLog(), Writes()
        giving = PartitionGiving(
            cast(MetadataLog, log), cast(WritePath, writes), withheld=lambda: None
        )
        caller = asyncio.create_task(giving.give({PARTITION: Epoch(2)}))
        await log.has_begun.wait()
        (gift,) = asyncio.all_tasks() - {caller, asyncio.current_task()}
        if is_cancelled:
            caller.cancel()
        log.may_end.set()
        with pytest.raises(asyncio.CancelledError if is_cancelled else LogAbandoned):
            await caller
        await asyncio.wait([gift])
        del caller, gift
        # The loop hears of an error that was not retrieved when its task is collected.
        await asyncio.sleep(0)
        gc.collect()
        assert unhandled == []
        assert writes.withheld == [writes.partition], "the outcome is unknown"

    asyncio.run(story())
