"""Snapshots of coordinators' states on a whole broker: restored states, the records that the log no
longer keeps, and buckets with missing or damaged snapshots."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import duckdb
import pandas as pd
import pytest

from tests.unit.broker.handlers.test_consumer_groups import join
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, run
from tests.unit.broker.transactional_client import (
    GROUP,
    SECOND,
    TransactionalClient,
    ask,
    committed_offset,
    find,
    loaded,
)
from tidelog.broker.coordinate import coordinators
from tidelog.broker.handlers.groups.group_offsets import offset_commit
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import SystemClock
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.coordinator.runtime import RuntimeState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.records.records import decode_records
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE
SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "coordinator_snapshot_interval_records": 10,
}


def world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), **{**SETTINGS, **settings})


@asynccontextmanager
async def serving(here: World, *, politely: bool = False) -> AsyncIterator[OneBroker]:
    async with here.broker(politely=politely) as broker:
        await loaded(broker)
        yield broker


async def commit(broker: OneBroker, offset: int, group: str = GROUP) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=TOPIC, partitions=[OffsetCommitRequestPartition(committed_offset=offset)]
            )
        ],
    )
    response = await ask(broker, offset_commit, request, 6)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def snapshots(here: World, topic: str = GROUP_TOPIC) -> list[str]:
    return [meta.key async for meta in here.store.list(f"state/{topic}/")]


async def snapshotted(broker: OneBroker, count: int) -> None:
    """Wait until this many snapshots are written."""
    for _ in range(1_000_000):
        if broker.broker.coordination.coordinators.snapshot_metrics.written >= count:
            return
        await asyncio.sleep(0)


async def nothing_due(broker: OneBroker) -> None:
    """Wait until every coordinator's newest snapshot holds all of its log."""
    partitions = [each for each in broker.broker.writes.partitions if each.is_internal]
    for _ in range(1_000_000):
        if all(each.log.table_next == each.log.next_offset for each in partitions):
            return
        await asyncio.sleep(0)


def groups_log(broker: OneBroker) -> Partition:
    return broker.broker.writes.partitions.named(GROUP_TOPIC, 0)


async def fill(broker: OneBroker, commits: int = 10) -> None:
    """Commit offsets 0, 1, 2 and so on; a snapshot is due every ten."""
    if broker.broker.membership.metadata.state.topic_named(TOPIC) is None:
        await broker.create_topic()
    await find(broker, GROUP, 0)
    for offset in range(commits):
        assert await commit(broker, offset) is OK


# Restored states.


def test_offsets_are_restored_from_a_snapshot_and_the_later_log() -> None:
    here = world()

    async def story() -> None:
        async with serving(here) as broker:
            await fill(broker)
            await snapshotted(broker, 1)
            assert await commit(broker, 77, "other") is OK
        assert await snapshots(here) == [f"state/{GROUP_TOPIC}/0/{10:020d}.parquet"]
        async with serving(here) as broker:
            assert await committed_offset(broker) == 9
            # The object of the first commits was not needed; a new snapshot holds both groups.
            for offset in range(20, 30):
                assert await commit(broker, offset) is OK
            await snapshotted(broker, 1)
        async with serving(here) as broker:
            assert await committed_offset(broker) == 29
        assert len(await snapshots(here)) == 2

    run(story)


def test_transactions_go_on_over_a_snapshot_taken_in_their_midst() -> None:
    here = world(coordinator_snapshot_interval_records=1)

    async def story() -> None:
        async with serving(here) as broker:
            await broker.create_topic()
            await find(broker, GROUP, 0)
            client = TransactionalClient(broker, version=SECOND)
            assert await client.init() is OK
            assert await client.send(b"a") is OK
            assert await client.commit_offset(7) is OK
            await nothing_due(broker)
            assert await snapshots(here)
            assert await snapshots(here, TRANSACTION_TOPIC)
            assert await committed_offset(broker) == -ErrorCode.UNSTABLE_OFFSET_COMMIT
        async with serving(here) as client.broker:
            assert await committed_offset(client.broker) == -ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert await client.commit() is OK
            assert await committed_offset(client.broker) == 7
        async with serving(here) as broker:
            assert await committed_offset(broker) == 7
            zombie, client = client, TransactionalClient(broker, version=SECOND)
            assert await client.init() is OK
            assert (client.producer_id, client.epoch) == (zombie.producer_id, zombie.epoch + 1)

    run(story)


def test_a_clean_stop_leaves_a_snapshot_where_much_would_have_to_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinators, "LAST_SNAPSHOT_RECORDS_MIN", 5)
    here = world()

    async def story() -> None:
        async with serving(here, politely=True) as broker:
            await fill(broker, 4)
        assert await snapshots(here) == []
        async with serving(here, politely=True) as broker:
            await fill(broker, 1)
        assert len(await snapshots(here)) == 1
        async with serving(here) as broker:
            assert await committed_offset(broker) == 0
            assert not groups_log(broker).log.extents

    run(story)


# Records that the log keeps.


def test_records_below_the_newest_snapshot_are_out_of_range() -> None:
    here = world()

    async def story() -> None:
        async with serving(here) as broker:
            await fill(broker)
            assert await commit(broker, 99) is OK
            await snapshotted(broker, 1)
            await see(broker)
        async with serving(here) as broker:
            await see(broker)

    async def see(broker: OneBroker) -> None:
        earliest = (await broker.offsets(-2, topic=GROUP_TOPIC)).offset
        assert earliest == 10
        assert (await broker.offsets(-1, topic=GROUP_TOPIC)).offset == 11
        below = await broker.fetch(9, topic=GROUP_TOPIC, wait_ms=60_000)
        assert below.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        found = await broker.fetch(earliest, topic=GROUP_TOPIC)
        assert found.log_start_offset == earliest
        records = list(decode_records(b"".join(found.records or ())))
        assert [record.offset for record in records] == [10]
        # A look-up by time does not find the deleted records either.
        assert (await broker.offsets(0, topic=GROUP_TOPIC)).offset == 10

    run(story)


def test_a_reader_of_committed_records_is_not_sent_below_the_first_that_is_kept() -> None:
    """This holds even if a transaction has been open since before the snapshot."""
    here = world()

    async def story() -> None:
        async with serving(here) as broker:
            await broker.create_topic()
            await find(broker, GROUP, 0)
            client = TransactionalClient(broker, version=SECOND)
            assert await client.init() is OK
            assert await client.commit_offset(7) is OK
            await fill(broker)
            await snapshotted(broker, 1)
            partition = groups_log(broker)
            assert partition.log.last_stable_offset == 10
            latest = (await broker.offsets(-1, topic=GROUP_TOPIC, committed=True)).offset
            assert latest == partition.first_offset == 10
            answer = await broker.fetch(latest, topic=GROUP_TOPIC, committed=True)
            assert (answer.error_code, b"".join(answer.records or ())) == (0, b"")
            assert await client.commit() is OK
            answer = await broker.fetch(latest, topic=GROUP_TOPIC, committed=True)
            assert answer.records

    run(story)


def test_checkpoints_and_images_drop_records_that_a_snapshot_holds() -> None:
    here = world()

    async def story() -> None:
        async with serving(here, politely=True) as broker:
            await fill(broker)
            await snapshotted(broker, 1)
            log = groups_log(broker).log
            assert (log.table_next, len(log.extents)) == (10, 0)
        async with here.broker() as broker:
            # The checkpoint has the log before the coordinator loads anything.
            assert groups_log(broker).log.image().table_next == 10

    run(story)


# Missing and damaged snapshots.


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_a_damaged_snapshot_stops_its_coordinator_alone(damage: str) -> None:
    here = world()

    async def story() -> None:
        async with serving(here, politely=True) as broker:
            await fill(broker)
            await snapshotted(broker, 1)
        (key,) = await snapshots(here)
        whole = bytes((await here.store.get(key)).data)
        if damage == "cut":
            await here.store.put(key, whole[:-1])
        elif damage == "flipped":
            await here.store.put(key, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        else:
            await here.store.delete(key)
        async with serving(here) as broker:
            (runtime,) = broker.broker.coordination.coordinators.groups.all()
            assert runtime.state is RuntimeState.CORRUPT
            assert await committed_offset(broker) == -ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await commit(broker, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            named = f"state/{GROUP_TOPIC}/" if damage == "missing" else key
            (fault,) = [each for each in broker.broker.health.faults() if "corrupt" in each]
            assert named in fault
            assert fault.endswith(f"; not served: {GROUP_TOPIC}-0")
            ((name, error),) = broker.broker.health.unserved()
            assert (name, error.key.startswith(named)) == (f"{GROUP_TOPIC}-0", True)
            # Transactions, and the records that they write, work as before.
            client = TransactionalClient(broker, version=SECOND)
            assert await client.init() is OK
            assert await client.send(b"a") is OK
            assert await client.commit() is OK

    run(story)


def test_an_older_snapshot_never_replaces_a_damaged_snapshot() -> None:
    here = world()

    async def story() -> None:
        async with serving(here) as broker:
            await fill(broker, 20)
            await snapshotted(broker, 2)
        _, newest = await snapshots(here)
        await here.store.put(newest, b"")
        async with serving(here) as broker:
            assert await committed_offset(broker) == -ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(story)


def test_a_log_that_does_not_reach_back_to_the_snapshot_is_corrupt() -> None:
    here = world()

    async def story() -> None:
        async with serving(here, politely=True) as broker:
            await fill(broker, 20)
            await snapshotted(broker, 2)
            assert await commit(broker, 77) is OK
        _, newest = await snapshots(here)
        await here.store.delete(newest)
        async with serving(here) as broker:
            assert await committed_offset(broker) == -ErrorCode.COORDINATOR_NOT_AVAILABLE
            (fault,) = broker.broker.health.faults()
            assert fault.endswith(
                f"the stored log of {GROUP_TOPIC}-0 begins at offset 20, and no snapshot of its"
                f" state reaches further than 10; not served: {GROUP_TOPIC}-0"
            )

    run(story)


# Metrics and tools.


def test_snapshots_are_counted() -> None:
    here = world()

    async def story() -> None:
        async with serving(here) as broker:
            await fill(broker)
            await snapshotted(broker, 1)
            text = broker.broker.metrics.exposition().decode()
        (key,) = await snapshots(here)
        assert "tidelog_state_snapshots_total 1.0" in text
        size = float((await here.store.head(key)).size)
        assert f"tidelog_state_snapshot_bytes_total {size}" in text
        assert "tidelog_state_snapshot_failures_total 0.0" in text
        assert "tidelog_state_snapshot_seconds_total" in text

    run(story)


def test_other_tools_read_snapshots_as_tables() -> None:
    here = world(coordinator_snapshot_interval_records=3)

    async def story() -> tuple[bytes, bytes]:
        async with serving(here) as broker:
            await fill(broker, 2)
            client = TransactionalClient(broker, version=SECOND)
            assert await client.init() is OK
            assert await client.send(b"a") is OK
            assert await client.commit_offset(7) is OK
            await snapshotted(broker, 2)
        (groups,) = await snapshots(here)
        (transactions,) = await snapshots(here, TRANSACTION_TOPIC)
        return (
            bytes((await here.store.get(groups)).data),
            bytes((await here.store.get(transactions)).data),
        )

    groups, transactions = run(story)
    frame = pd.read_parquet(io.BytesIO(groups)).set_index("kind")
    assert frame.loc["offset", "offset"] == 1
    assert frame.loc["pending offset", "offset"] == 7
    states = pd.read_parquet(io.BytesIO(transactions))
    assert states.loc[0, "transactional_id"] == "t"
    assert states.loc[0, "state"] == "Ongoing"
    assert {"topic": TOPIC, "partition": 0} in list(states.loc[0, "partitions"])
    assert duckdb.sql(
        "select transactional_id, unnest(partitions).topic from states order by 2"
    ).fetchall() == [("t", GROUP_TOPIC), ("t", TOPIC)]


def test_other_tools_read_consumer_groups_as_tables() -> None:
    here = world(coordinator_snapshot_interval_records=1)

    async def story() -> tuple[str, bytes]:
        async with serving(here) as broker:
            topic_id = await broker.create_topic(partitions=2)
            await find(broker, GROUP, 0)
            assert (await join(broker, "m", instance_id="i")).error_code == 0
            await nothing_due(broker)
        *_, newest = await snapshots(here)
        return str(topic_id), bytes((await here.store.get(newest)).data)

    topic_id, data = run(story)
    rows = pd.read_parquet(io.BytesIO(data))
    assert set(rows.group_id) == {GROUP}
    kinds = rows.set_index("record_kind")
    assert kinds.loc["consumer group", "epoch"] == kinds.loc["target epoch", "epoch"] == 1
    member = kinds.loc["consumer member"]
    assert (member.member_id, member.instance_id) == ("m", "i")
    assert list(member.subscribed_topics) == [TOPIC]
    assert member.rebalance_timeout_ms == 60_000
    current = kinds.loc["current assignment"]
    assert (current.member_id, current.epoch, current.member_state) == ("m", 1, "STABLE")
    assert list(current.revoking_partitions) == []
    held = duckdb.sql(
        "select record_kind, unnest(assigned_partitions).topic_id,"
        " unnest(assigned_partitions).partition from rows where member_id = 'm'"
        " order by all"
    ).fetchall()
    assert held == [
        (kind, topic_id, partition)
        for kind in ("current assignment", "target assignment")
        for partition in (0, 1)
    ]
