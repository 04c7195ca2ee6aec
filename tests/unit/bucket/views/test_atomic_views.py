"""Atomic snapshots over topics on a whole broker: no transaction is seen in part (rule G4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.transactional_client import TransactionalClient
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    atomic_values,
    opened,
    roll,
    roll_and_checkpoint,
    world,
)
from tidelog.bucket.views.atomic import atomic_view
from tidelog.bucket.views.bucket import Bucket
from tidelog.coordinator.transaction import transaction as transactions
from tidelog.errors import CorruptObject
from tidelog.identifiers import ProducerEpoch, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import ObjectStore

OK = ErrorCode.NONE
TOPICS = ("left", "right")


async def topics(broker: OneBroker) -> dict[str, UUID]:
    return {name: await broker.create_topic(name) for name in TOPICS}


async def send(client: TransactionalClient, value: bytes) -> None:
    """Send the same record to both topics."""
    for name in TOPICS:
        assert await client.send(value, topic=name) is OK


async def read(bucket: Bucket, ids: dict[str, UUID]) -> list[list[bytes]]:
    """The values of each topic in an atomic view."""
    found = await atomic_view(bucket, *TOPICS)
    return [await atomic_values(bucket, found, TopicPartition(ids[name], 0)) for name in TOPICS]


def test_decided_rows_above_an_open_transaction_are_in_and_undecided_ones_are_not() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            ids = await topics(broker)
            opening = TransactionalClient(broker, "open")
            committed = TransactionalClient(broker, "committed")
            aborted = TransactionalClient(broker, "aborted")
            for client in (opening, committed, aborted):
                assert await client.init() is OK
            await send(opening, b"open")
            await send(committed, b"committed")
            await send(aborted, b"aborted")
            await broker.produce(batch(b"plain"), topic="right")
            assert await committed.commit() is OK
            assert await aborted.abort() is OK
            await send(committed, b"next")
            bucket = await opened(WatchedStore(here.store))
            expected = [[b"committed"], [b"committed", b"plain"]]
            assert await read(bucket, ids) == expected
        assert await read(bucket, ids) == expected

    run(story)


async def commit(here: ObjectStore, broker: OneBroker, client: TransactionalClient) -> None:
    assert await client.commit() is OK


async def commit_and_go_on(
    here: ObjectStore, broker: OneBroker, client: TransactionalClient
) -> None:
    """The decision is no longer the producer id's newest."""
    assert await client.commit() is OK
    await send(client, b"next")


async def commit_and_roll_one(
    here: ObjectStore, broker: OneBroker, client: TransactionalClient
) -> None:
    """Committed records are in the table of one topic and in the tail of the other."""
    assert await client.commit() is OK
    await roll(here, "left")


async def commit_roll_and_forget(
    here: ObjectStore, broker: OneBroker, client: TransactionalClient
) -> None:
    """Commit and roll, until neither the log nor the WAL tells of the transaction."""
    assert await client.commit() is OK
    await roll_and_checkpoint(here, broker, "left")
    await roll_and_checkpoint(here, broker, "right")


async def commit_twice(here: ObjectStore, broker: OneBroker, client: TransactionalClient) -> None:
    assert await client.commit() is OK
    await send(client, b"second")
    assert await client.commit() is OK


async def abort(here: ObjectStore, broker: OneBroker, client: TransactionalClient) -> None:
    assert await client.abort() is OK


async def come_anew(here: ObjectStore, broker: OneBroker, client: TransactionalClient) -> None:
    """A producer id that no coordinator knew."""
    other = TransactionalClient(broker, "other")
    assert await other.init() is OK
    await send(other, b"other")
    assert await other.commit() is OK


async def restart(here: ObjectStore, broker: OneBroker, client: TransactionalClient) -> None:
    """A producer takes over, and leaves the state Empty."""
    assert await client.commit() is OK
    assert await client.init() is OK


Happening = Callable[[ObjectStore, OneBroker, TransactionalClient], Awaitable[None]]
HAPPENINGS = (
    commit,
    commit_and_go_on,
    commit_and_roll_one,
    commit_roll_and_forget,
    commit_twice,
    abort,
    come_anew,
    restart,
)


async def no_transaction_is_half_seen(happening: Happening, interval: int, step: int) -> int:
    """Run `change` before that request of the reader. Returns the number of its requests."""
    here = world(coordinator_snapshot_interval_records=interval)
    async with here.broker(politely=False) as broker:
        ids = await topics(broker)
        client = TransactionalClient(broker)
        assert await client.init() is OK
        await send(client, b"before")
        assert await client.commit() is OK
        await send(client, b"first")
        store = WatchedStore(here.store)
        bucket = await opened(store)
        store.requests.clear()

        async def interfere(number: int, _: str) -> None:
            if number == step:
                await happening(here.store, broker, client)

        store.before = interfere
        left, right = await read(bucket, ids)
        assert left == right, f"at request {step}"
        assert left[0] == b"before"
        return len(store.requests)


def at_every(stride: int, happening: Happening, interval: int) -> None:
    async def stories() -> None:
        step = 0
        while step < await no_transaction_is_half_seen(happening, interval, step):
            step += stride
        assert step > 10

    run(stories)


@pytest.mark.parametrize("happening", [commit_and_roll_one, come_anew])
def test_a_transaction_during_an_atomic_view_is_in_everywhere_or_nowhere(
    happening: Happening,
) -> None:
    at_every(5, happening, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda each: str(each.__name__))
@pytest.mark.parametrize("interval", [1, 1000])
def test_no_transaction_is_half_seen_when_the_broker_acts_between_any_two_requests(
    happening: Happening, interval: int
) -> None:
    at_every(1, happening, interval)


def test_a_producer_id_that_was_given_up_before_the_snapshot_does_not_count_as_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # After the last epoch a producer gets another id, and the coordinator forgets the one before.
    monkeypatch.setattr(transactions, "EPOCH_MAX", ProducerEpoch(4))
    here = world(coordinator_snapshot_interval_records=1)

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            ids = await topics(broker)
            client = TransactionalClient(broker)
            assert await client.init() is OK
            seen = set()
            expected = []
            for number in range(12):
                seen.add(client.producer_id)
                await send(client, b"%d" % number)
                assert await client.commit() is OK
                expected.append(b"%d" % number)
                if number == 5:
                    await roll(here.store, "left")
            assert len(seen) > 2
            bucket = await opened(here.store)
            assert await read(bucket, ids) == [expected, expected]

    run(story)


def test_an_abort_without_a_transaction_does_not_undo_the_one_before() -> None:
    # A producer of the second version may abort a transaction that it never began; the ordinal
    # stays (KIP-890).
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            ids = await topics(broker)
            client = TransactionalClient(broker)
            assert await client.init() is OK
            await send(client, b"a")
            assert await client.commit() is OK
            assert await client.abort() is OK
            bucket = await opened(here.store)
            assert await read(bucket, ids) == [[b"a"], [b"a"]]

    run(story)


def test_without_the_coordinators_state_there_is_no_atomic_view() -> None:
    here = world(coordinator_snapshot_interval_records=1)

    async def story() -> None:
        async with here.broker() as broker:
            await topics(broker)
            client = TransactionalClient(broker)
            assert await client.init() is OK
        keys = [meta.key async for meta in here.store.list("state/__transaction_state/")]
        await here.store.put(keys[-1], b"not a snapshot")
        bucket = await opened(here.store)
        with pytest.raises(CorruptObject, match=keys[-1]):
            await atomic_view(bucket, *TOPICS)

    run(story)
