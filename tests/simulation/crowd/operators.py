"""An operator who moves partitions, drains brokers, upgrades them and raises the level."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tests.simulation.actors.drains import change_drain
from tests.simulation.actors.moves import give_some
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.crowd.members import Member, Members
from tidelog.broker.running import RunningBroker
from tidelog.coordinator.cluster.records.client_quotas import QuotaEntity
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    QuotasChanged,
    Record,
)
from tidelog.coordinator.cluster.state.features import check_readable, raised
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Fenced, Refused
from tidelog.identifiers import BrokerId
from tidelog.storage.object_store import StoreError
from tidelog.wal.write.slot_upload import WalLost

PAUSE_SECONDS_MEAN = 0.8
UNDRAINED_SHARE = 0.7
"""The share of changes that end drains, so that few brokers drain at a time."""


class Operator:
    """Sends requests to some broker, again and again, until everything is healed."""

    def __init__(self, cluster: SimulatedCluster, members: Members, seed: int) -> None:
        self._cluster = cluster
        self._members = members
        self._random = random.Random(f"operator {seed}")
        self._draining: set[BrokerId] = set()

    async def run(self) -> None:
        """Send one request now and then. The broker works on it in its own process."""
        actions: tuple[Callable[[Member, RunningBroker], Awaitable[None]], ...] = (
            self._move,
            self._move,
            self._drain,
            self._limit,
            self._raise,
            self._upgrade,
        )
        while not self._cluster.healed:
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_SECONDS_MEAN))
            running = list(self._members.running())
            if running and not self._cluster.healed:
                member, broker = self._random.choice(running)
                action = self._random.choice(actions)
                member.process.spawn(self._attempt(action(member, broker)), "operator")

    async def settle(self) -> None:
        """End all drains, upgrade the remaining brokers, and raise the level. All of this must
        succeed."""
        while not self._is_settled():
            running = list(self._members.running())
            for member, broker in running:
                await self._upgrade(member, broker)
            for member, broker in running[:1]:
                for info in broker.membership.state().live_brokers():
                    if info.draining:
                        change = change_drain(
                            member.broker, member.environment, info.broker_id, draining=False
                        )
                        member.process.spawn(change, "operator")
                member.process.spawn(self._attempt(self._raise(member, broker)), "operator")
            await asyncio.sleep(1.0)

    async def _attempt(self, action: Awaitable[None]) -> None:
        try:
            await action
        except (Refused, StoreError):
            self._cluster.counts["operations refused"] += 1
        except (Fenced, WalLost):
            return

    async def _move(self, member: Member, _: RunningBroker) -> None:
        await give_some(member.broker, member.environment, self._random)

    async def _drain(self, member: Member, broker: RunningBroker) -> None:
        live = broker.membership.state().live_brokers()
        info = self._random.choice(live)
        drains = not info.draining and self._random.random() > UNDRAINED_SHARE
        await change_drain(member.broker, member.environment, info.broker_id, draining=drains)

    async def fill(self, member: Member, broker: RunningBroker, interval_entries: int) -> int:
        """Let a broker append entries up to one after which it writes a snapshot; its number."""
        number = -1
        while number % interval_entries:
            appended = member.process.spawn(self._change_quota(broker), "operator")
            number = await appended
        return number

    async def _limit(self, _: Member, broker: RunningBroker) -> None:
        await self._change_quota(broker)
        self._cluster.counts["quotas changed"] += 1

    async def _change_quota(self, broker: RunningBroker) -> int:
        """Append a record that waits for its level; the entry's number."""
        record = QuotasChanged(
            QuotaEntity(client_id=f"client-{self._random.randint(0, 5)}"),
            {"producer_byte_rate": float(self._random.randint(10**8, 10**9))},
        )

        def build(state: ClusterState) -> tuple[Record, ...]:
            check_readable(state, (record,))
            return (record,)

        return await self._append(broker, build)

    async def _raise(self, _: Member, broker: RunningBroker) -> None:
        await self._append(broker, lambda state: raised(state, BROKER_VERSION))

    async def _upgrade(self, member: Member, broker: RunningBroker) -> None:
        """Restart a broker of the earlier release. Its successor is of the present release."""
        if self._is_behind(broker):
            self._members.harmed.add((member.process.host, member.process.pid))
            self._cluster.counts["brokers upgraded"] += 1
            member.process.terminate()

    async def _append(
        self, broker: RunningBroker, build: Callable[[ClusterState], tuple[Record, ...]]
    ) -> int:
        member = broker.membership
        return await member.metadata.append(member.incarnation.epoch, build)

    def _is_behind(self, broker: RunningBroker) -> bool:
        info = broker.membership.state().brokers.get(broker.membership.incarnation.epoch)
        return info is not None and info.version < BROKER_VERSION

    def _is_settled(self) -> bool:
        """Whether at least one broker runs and knows of no pending work."""
        states = (broker.membership.state() for _, broker in self._members.running())
        state = next(states, None)
        return (
            state is not None
            and state.level == BROKER_VERSION
            and not any(info.draining for info in state.live_brokers())
        )
