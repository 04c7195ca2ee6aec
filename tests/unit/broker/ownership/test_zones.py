"""A group's coordinator moves to the zone of the group's clients."""

from __future__ import annotations

from contextlib import AsyncExitStack
from uuid import UUID

from tests.unit.broker.one_broker import OneBroker, World, run
from tests.unit.broker.ownership.test_drains import until
from tests.unit.broker.ownership.test_several_brokers import epoch_of
from tidelog.broker.handlers.groups.groups import heartbeat
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership.zone_use import USES_MIN
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.identifiers import TopicPartition
from tidelog.protocol.schemas.groups import HeartbeatRequest
from tidelog.storage.stores.memory import MemoryStore

SETTINGS: dict[str, object] = {
    "auto_leader_rebalance_enable": True,
    "wal_linger_ms": 0,
    "broker_heartbeat_interval_ms": 50,
    "leader_imbalance_check_interval_seconds": 1,
}


async def beat(broker: OneBroker, group_id: str, client_id: str) -> None:
    context = RequestContext(4, 1, client_id, "127.0.0.1", 1)
    request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id="m")
    await heartbeat(broker.broker.services.groups, request, context)


def test_a_coordinator_moves_to_its_clients_and_takes_no_fair_share_from_anyone() -> None:
    store = MemoryStore(SystemClock())
    here = World(store, broker_rack="a", **SETTINGS)
    there = World(store, broker_rack="b", **SETTINGS)
    group_of = {partition_for(name, 3): name for name in ("g0", "g1", "g2", "g3", "g4", "g5")}
    assert len(group_of) == 3

    async def story() -> None:
        async with AsyncExitStack() as brokers:
            first = await brokers.enter_async_context(here.broker(1))
            here.settings = there.settings
            second = await brokers.enter_async_context(here.broker(2))
            metadata, mine = first.broker.membership.metadata, epoch_of(first)
            await metadata.refresh()
            topic_id = UUID(int=7)
            owners = (mine, epoch_of(second), mine)
            record = TopicCreated(topic_id, GROUP_TOPIC, owners, internal=True)
            await metadata.append(mine, lambda _: (record,))
            # Clients use one coordinator from this zone, and the other coordinator from the other
            # zone.
            for _ in range(2 * round(USES_MIN)):
                await beat(first, group_of[0], "app,zone=a")
                await beat(first, group_of[2], "app,zone=b")
            state = await until(second, mine, 1)
            assert state.owned_by(mine) == (TopicPartition(topic_id, 0),)
            assert state.owned_by(epoch_of(second)) == (
                TopicPartition(topic_id, 1),
                TopicPartition(topic_id, 2),
            )

    run(story)
