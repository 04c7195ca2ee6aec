"""The coordinators' states from the bucket alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.one_broker import batch, run
from tests.unit.broker.transactional_client import GROUP, TransactionalClient, find
from tests.unit.bucket.bucket_world import WatchedStore, opened, world
from tidelog.bucket.views import states
from tidelog.bucket.views.bucket import Bucket
from tidelog.coordinator.internal_topics import TRANSACTION_TOPIC
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode

OK = ErrorCode.NONE


async def transactions(bucket: Bucket) -> dict[str, tuple[str, int]]:
    rows = (await states.transactions(bucket)).to_pylist()
    return {row["transactional_id"]: (row["state"], row["ordinal"]) for row in rows}


async def offsets(bucket: Bucket) -> dict[tuple[str, str], int]:
    rows: list[dict[str, Any]] = (await states.groups(bucket)).to_pylist()
    return {(row["kind"], row["group_id"]): row["offset"] for row in rows}


def test_a_cluster_without_coordinators_has_no_states() -> None:
    here = world()

    async def story() -> None:
        async with here.broker():
            bucket = await opened(here.store)
            assert (await states.transactions(bucket)).num_rows == 0
            assert "transactional_id" in (await states.transactions(bucket)).schema.names
            assert (await states.groups(bucket)).num_rows == 0

    run(story)


@pytest.mark.parametrize("interval", [2, 1000])
def test_transactions_and_groups_are_read_from_snapshots_and_logs(interval: int) -> None:
    here = world(coordinator_snapshot_interval_records=interval)

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            await broker.create_topic()
            await broker.produce(batch(b"x"))
            await find(broker, GROUP, 0)
            first, second = TransactionalClient(broker, "one"), TransactionalClient(broker, "two")
            for client in (first, second):
                assert await client.init() is OK
            bucket = await opened(WatchedStore(here.store))
            assert await transactions(bucket) == {"one": ("Empty", 0), "two": ("Empty", 0)}
            assert await first.send(b"a") is OK
            assert await first.commit_offset(1) is OK
            assert await second.send(b"b") is OK
            assert await transactions(bucket) == {"one": ("Ongoing", 1), "two": ("Ongoing", 1)}
            assert await offsets(bucket) == {("pending offset", GROUP): 1}
            assert await first.commit() is OK
            assert await second.abort() is OK
        assert await offsets(bucket) == {("offset", GROUP): 1}
        expected = {"one": ("CompleteCommit", 1), "two": ("CompleteAbort", 1)}
        assert await transactions(bucket) == expected
        async with here.broker():
            assert await transactions(bucket) == expected
        assert await transactions(bucket) == expected

    run(story)


def test_states_are_right_whenever_a_snapshot_takes_the_place_of_records() -> None:
    async def story(step: int) -> int:
        here = world(coordinator_snapshot_interval_records=1)
        async with here.broker() as broker:
            await broker.create_topic()
            client = TransactionalClient(broker, "one")
            assert await client.init() is OK
            store = WatchedStore(here.store)
            bucket = await opened(store)
            store.requests.clear()

            async def interfere(number: int, _: str) -> None:
                if number == step:
                    assert await client.send(b"a") is OK
                    assert await client.commit() is OK
                    await broker.broker.writes.checkpointer.checkpoint()

            store.before = interfere
            found = await transactions(bucket)
            assert found["one"] in (("Empty", 0), ("CompleteCommit", 1))
            return len(store.requests)

    async def stories() -> None:
        step = 0
        while step < await story(step):
            step += 1
        assert step > 5

    run(stories)


def test_a_damaged_snapshot_of_a_state_is_named() -> None:
    here = world(coordinator_snapshot_interval_records=1)

    async def story() -> None:
        async with here.broker() as broker:
            await broker.create_topic()
            client = TransactionalClient(broker, "one")
            assert await client.init() is OK
        keys = [meta.key async for meta in here.store.list(f"state/{TRANSACTION_TOPIC}/")]
        data = bytearray((await here.store.get(keys[-1])).data)
        data[20] ^= 1
        await here.store.put(keys[-1], data)
        bucket = await opened(here.store)
        with pytest.raises(CorruptObject, match=keys[-1]):
            await states.transactions(bucket)
        await here.store.delete(keys[-1])
        with pytest.raises(CorruptObject, match=f"{TRANSACTION_TOPIC}|wal/"):
            await states.transactions(bucket)

    run(story)
