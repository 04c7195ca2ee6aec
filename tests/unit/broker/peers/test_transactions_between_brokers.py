"""Transactions whose coordinator, group coordinator and leaders are on different brokers."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.peers.several import OK, RoutedClient, divided, new_world
from tests.unit.broker.transactional_client import FIRST, SECOND, committed_offset, read

both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


async def until_stable(one: OneBroker, partition: int, offset: int) -> None:
    """Wait until the last stable offset is there."""
    clock = one.broker.environment.clock
    while (await one.offsets(-1, partition, committed=True)).offset < offset:
        await clock.sleep(0.001)


@both_versions
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_holds_over_three_brokers(version: int, commit: bool) -> None:
    """Broker 1 coordinates, broker 2 coordinates groups; the partitions are everywhere."""

    async def story() -> None:
        async with divided(new_world(), 0, 1, 2, coordinator=1, groups=2, brokers=3) as brokers:
            producer = RoutedClient(brokers[1], brokers, brokers[2], version)
            assert await producer.init() is OK
            for number in range(3):
                assert await producer.send(b"%d" % number, number) is OK
            assert await producer.commit_offset(7) is OK
            for number, leader in enumerate(brokers):
                assert (await leader.produce(batch(b"plain"), number)).error_code == OK
                assert await read(leader, number) == []
            assert await committed_offset(brokers[2], stable=False) == -1
            assert await producer.end(commit=commit) is OK
            for number, leader in enumerate(brokers):
                await until_stable(leader, number, 3)
                expected = [b"%d" % number, b"plain"] if commit else [b"plain"]
                assert await read(leader, number) == expected
            while (found := await committed_offset(brokers[2])) < -1:
                await brokers[2].broker.environment.clock.sleep(0.001)
            assert found == (7 if commit else -1)

    run(story)


@both_versions
def test_transactions_follow_each_other(version: int) -> None:
    """The next transaction begins when the markers of the one before are durable everywhere."""

    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            producer = RoutedClient(brokers[1], brokers, brokers[1], version)
            assert await producer.init() is OK
            for number in range(5):
                while await producer.send(b"%d" % number) is not OK:
                    await brokers[0].broker.environment.clock.sleep(0.001)
                assert await producer.end(commit=number != 2) is OK
            await until_stable(brokers[0], 0, 10)
            assert await read(brokers[0]) == [b"0", b"1", b"3", b"4"]

    run(story)
