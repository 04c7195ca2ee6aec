"""Settings that are altered while a broker starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.unit.broker.administered import new_broker
from tests.unit.broker.one_broker import World, run
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.storage.object_store import Buffer, Condition
from tidelog.storage.stores.memory import MemoryStore


class BusyStore(MemoryStore):
    """Runs a change before the next entry of the metadata log is put."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.before: Callable[[], Awaitable[object]] | None = None

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if self.before is not None and key.startswith("cluster/log/"):
            before, self.before = self.before, None
            await before()
        return await super().put(key, data, condition)


def test_settings_altered_during_a_registration_hold_when_the_broker_serves() -> None:
    store = BusyStore()

    async def story() -> None:
        other = await new_broker(store, 1)
        record = ConfigsChanged(ConfigScope.CLUSTER, "", {"message.max.bytes": "99"})
        epoch = other.incarnation.epoch
        store.before = lambda: other.metadata.append(epoch, lambda _: (record,))
        async with World(store).broker() as one:
            assert store.before is None
            assert one.broker.settings.now().integer("message.max.bytes") == 99
        await other.metadata.close()

    run(story)


def test_settings_of_deleted_topics_are_forgotten() -> None:
    async def story() -> None:
        async with World(MemoryStore(SystemClock())).broker() as one:
            settings = one.broker.settings
            first, *others = [await one.create_topic(f"t{number}") for number in range(20)]
            for each in (first, *others):
                settings.topic_config(each)
                await one.delete_topic(each)
            with pytest.raises(KeyError):
                settings.topic_config(first)

    run(story)
