"""A truncated, altered or missing part of a table fails its own partitions: with a storage error, a
count, and a line in the log that has the key. All other partitions go on, and so do their rolls."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.rolled import flush
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.records import decode_records
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_log import CHECKPOINT_COMMITS

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
HOW = ("missing", "truncated", "altered")
OTHER = "other"


async def damage(store: MemoryStore, key: str, how: str) -> bytes:
    """The object's data before the damage."""
    whole = bytes((await store.get(key)).data)
    match how:
        case "missing":
            await store.delete(key)
        case "truncated":
            await store.put(key, whole[: len(whole) // 2])
        case _:
            middle = len(whole) // 2
            await store.put(
                key, whole[:middle] + bytes([whole[middle] ^ 0x40]) + whole[middle + 1 :]
            )
    return whole


async def write(one: OneBroker, rolls: int = 2) -> UUID:
    """Two partitions of one topic and one of another, with most records rolled. Returns the topic's
    id."""
    topic_id = await one.create_topic(partitions=2, retention_ms="-1")
    await one.create_topic(OTHER, retention_ms="-1")
    for number in range(rolls):
        for topic, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER, 0)):
            await one.produce(batch(b"rolled %d" % number), partition, topic=topic)
            await flush(one, partition, topic)
    for topic, partition in ((TOPIC, 0), (TOPIC, 1), (OTHER, 0)):
        await one.produce(batch(b"in the WAL"), partition, topic=topic)
    return topic_id


async def values(one: OneBroker, partition: int, topic: str = TOPIC, start: int = 0) -> list[bytes]:
    """The values that a consumer gets from an offset on."""
    found: list[bytes] = []
    while True:
        answer = await one.fetch(start, partition, topic=topic, committed=True)
        assert answer.error_code == 0, answer
        if not answer.records:
            return found
        for record in decode_records(b"".join(answer.records)):
            if record.offset >= start:
                assert record.value is not None
                found.append(record.value)
                start = record.offset + 1


async def is_refused(
    one: OneBroker, partition: int, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A fetch and a look-up by time are refused with a storage error, a count, and a log line with
    the key."""
    metrics = one.broker.metrics
    for ask in ("fetch", "offsets"):
        before = metrics.storage_faults
        caplog.clear()
        if ask == "fetch":
            assert (await one.fetch(0, partition)).error_code == STORAGE_ERROR
        else:
            assert (await one.offsets(1000, partition)).error_code == STORAGE_ERROR
        assert metrics.storage_faults == before + 1, ask
        assert any(
            key in (getattr(each, "key", ""), *str(getattr(each, "why", "")).split(": "))
            for each in caplog.records
        ), f"{ask}: {[vars(each) for each in caplog.records]}"
    page = metrics.exposition().decode()
    assert f"tidelog_storage_faults_total {metrics.storage_faults:.1f}" in page


async def others_go_on(one: OneBroker, partitions: tuple[int, ...]) -> None:
    """The other topic and the other partitions are read, written and rolled."""
    for topic, partition in ((OTHER, 0), *((TOPIC, each) for each in partitions)):
        before = await values(one, partition, topic)
        await one.produce(batch(b"more"), partition, topic=topic)
        await flush(one, partition, topic)
        assert await values(one, partition, topic) == [*before, b"more"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_segment_fails_its_partition_and_others_go_on(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        store = MemoryStore(SystemClock())
        here = World(store)
        async with here.broker() as one:
            topic_id = await write(one)
            expected = await values(one, 0)
        prefix = f"topics/{topic_id}/partition=0/"
        key, *_ = [meta.key async for meta in store.list(prefix)]
        whole = await damage(store, key, how)
        async with here.broker() as one:
            await is_refused(one, 0, key, caplog)
            # The partition itself takes records, rolls them and serves the offsets behind the
            # damage.
            await one.produce(batch(b"more"))
            await flush(one)
            assert await values(one, 0, start=1) == [*expected[1:], b"more"]
            await others_go_on(one, (1,))
            await store.put(key, whole)
            assert await values(one, 0) == [*expected, b"more"]

    run(story)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("version", [0, 3])
def test_a_damaged_version_fails_its_topics_table_and_others_go_on(
    version: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If the newest version is missing, the broker notices it only by the table's end in the
    log."""

    async def story() -> None:
        store = MemoryStore(SystemClock())
        here = World(store)
        async with here.broker() as one:
            topic_id = await write(one)
            expected = [await values(one, each) for each in range(2)]
        key = f"topics/{topic_id}/_delta_log/{version:020d}.json"
        *_, newest = [meta.key async for meta in store.list(f"topics/{topic_id}/_delta_log/")]
        assert newest.endswith(f"{3:020d}.json")
        whole = await damage(store, key, how)
        lost = how == "missing" and version == 3
        async with here.broker() as one:
            await is_refused(one, 1, key, caplog)
            for partition in range(2):
                # Records in the WAL are served, and the partition takes new ones.
                await one.produce(batch(b"more"), partition)
                assert await values(one, partition, start=2) == [b"in the WAL", b"more"]
            # Its first partition is in the versions that are left.
            assert (await one.fetch(0, 0)).error_code == (0 if lost else STORAGE_ERROR)
            await others_go_on(one, ())
        await store.put(key, whole)
        async with here.broker() as one:
            for partition in range(2):
                assert await values(one, partition) == [*expected[partition], b"more"]

    run(story)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_checkpoint_of_a_table_fails_its_topic_and_others_go_on(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        store = MemoryStore(SystemClock())
        here = World(store)
        async with here.broker() as one:
            topic_id = await write(one, rolls=CHECKPOINT_COMMITS // 2)
            prefix = f"topics/{topic_id}/_delta_log/"
            while f"{prefix}_last_checkpoint" not in [m.key async for m in store.list(prefix)]:
                await one.broker.environment.clock.sleep(0.01)
            expected = await values(one, 0)
        [key] = [m.key async for m in store.list(prefix) if m.key.endswith(".parquet")]
        whole = await damage(store, key, how)
        async with here.broker() as one:
            await is_refused(one, 0, key, caplog)
            following = CHECKPOINT_COMMITS // 2
            assert await values(one, 0, start=following) == [b"in the WAL"]
            await others_go_on(one, ())
        await store.put(key, whole)
        async with here.broker() as one:
            assert await values(one, 0) == expected

    run(story)
