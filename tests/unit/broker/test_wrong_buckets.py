"""Buckets that a broker must refuse, and the messages of the refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from tests.unit.broker.collections import hold_tenure_reports
from tests.unit.broker.one_broker import World, batch, run
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ClusterCreated, decode_entry, encode_entry
from tidelog.errors import CorruptObject, ForeignObjects, TidelogError, UnsupportedFormat
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    Condition,
    StoreMisconfigured,
)
from tidelog.storage.stores.memory import MemoryStore

ENTRY_0 = "cluster/log/00000000000000000000.json"


def memory() -> MemoryStore:
    return MemoryStore(SystemClock(), "memory://test")


async def start(store: MemoryStore) -> None:
    async with World(store).broker():
        pass


def refusal(prepare: Callable[[MemoryStore], Awaitable[None]], store: MemoryStore) -> TidelogError:
    """The broker's refusal of a store that `prepare` has changed."""

    async def story() -> TidelogError:
        await prepare(store)
        with pytest.raises(TidelogError) as refused:
            await start(store)
        return refused.value

    return run(story)


def test_a_prefix_with_foreign_objects_is_refused_by_name() -> None:
    async def prepare(store: MemoryStore) -> None:
        await store.put("holiday/photo.jpg", b"...")

    error = refusal(prepare, memory())
    assert isinstance(error, ForeignObjects)
    assert "holiday/photo.jpg" in str(error)


def test_a_newer_format_is_refused_with_both_versions() -> None:
    async def prepare(store: MemoryStore) -> None:
        await start(store)
        entry = decode_entry(ENTRY_0, (await store.get(ENTRY_0)).data)
        (cluster,) = entry.records
        assert isinstance(cluster, ClusterCreated)
        newer = replace(
            cluster, format_version=99, minimum_reader_version=99, minimum_writer_version=99
        )
        await store.put(ENTRY_0, encode_entry(replace(entry, records=(newer,))))

    error = refusal(prepare, memory())
    assert isinstance(error, UnsupportedFormat)
    assert "99" in str(error)
    assert "reader version 2" in str(error)


def test_a_damaged_metadata_entry_is_named() -> None:
    async def prepare(store: MemoryStore) -> None:
        await start(store)
        await store.put(ENTRY_0, b"{}")

    error = refusal(prepare, memory())
    assert isinstance(error, CorruptObject)
    assert error.key == ENTRY_0


class WithoutConditions(MemoryStore):
    """A store that takes conditions and ignores them."""

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        return await super().put(key, data)


class ReadOnly(MemoryStore):
    """A store that refuses all writes."""

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        raise AccessDenied(key, "writing is not allowed; nothing was stored")


async def nothing(_: MemoryStore) -> None:
    return None


def test_a_store_without_conditional_writes_is_refused() -> None:
    error = refusal(nothing, WithoutConditions(SystemClock(), "memory://test"))
    assert isinstance(error, StoreMisconfigured)
    assert "If-None-Match" in str(error)


def test_a_read_only_store_is_refused() -> None:
    error = refusal(nothing, ReadOnly(SystemClock(), "memory://test"))
    assert isinstance(error, AccessDenied)


@pytest.mark.parametrize("damage", ["missing", "cut", "altered"])
def test_a_damaged_wal_object_stops_only_the_partitions_that_need_the_object(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second process dies before it has opened the partitions that it took over.
    hold_tenure_reports(monkeypatch)

    async def story() -> None:
        store = memory()
        world = World(store)
        async with world.broker(politely=False) as one:
            await one.create_topic("harmed")
            await one.create_topic("whole")
            await one.produce(batch(b"a"), topic="harmed")
            (extent,) = one.broker.writes.partitions.named("harmed", 0).log.extents
        async with world.broker(politely=False) as one:
            await one.produce(batch(b"b"), topic="whole")
        whole = bytes((await store.get(extent.key)).data)
        if damage == "missing":
            await store.delete(extent.key)
        else:
            await store.put(extent.key, whole[:-8] if damage == "cut" else whole[:-8] + b"x" * 8)
        async with world.broker() as one:
            answer = await one.fetch(topic="harmed")
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            refused = await one.produce(batch(b"c"), topic="harmed")
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert extent.key in (refused.error_message or "")
            (fault,) = one.broker.health.faults()
            assert extent.key in fault
            assert fault.endswith("; not served: harmed-0")
            assert [r.value for r in await one.read_all(topic="whole")] == [b"b"]
            assert (await one.produce(batch(b"d"), topic="whole")).base_offset == 1

    run(story)
