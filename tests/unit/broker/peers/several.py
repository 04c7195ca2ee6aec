"""Two or three brokers on one bucket that divide the parts of a transaction between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.unit.broker.one_broker import TOPIC, OneBroker, World
from tests.unit.broker.ownership.test_several_brokers import epoch_of
from tests.unit.broker.transactional_client import FIRST, SECOND, TransactionalClient
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.coordinator.cluster.records.topics import new_topic_id
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.identifiers import Epoch, TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE


def new_world(store: ObjectStore | None = None, **settings: object) -> World:
    """Brokers that read the metadata log only for a reason, and answer at once."""
    quiet = {"wal_linger_ms": 0, "broker_heartbeat_interval_ms": 60_000}
    return World(store or MemoryStore(SystemClock()), **(quiet | settings))


async def create(one: OneBroker, name: str, *owners: OneBroker, internal: bool = False) -> TopicId:
    """A topic whose partitions these brokers lead, in order."""
    metadata = one.broker.membership.metadata
    random = one.broker.environment.entropy.uuid()
    created: list[TopicId] = []

    def build(state: object) -> Sequence[TopicCreated]:
        topic_id = new_topic_id(metadata.state.sequence + 1, random)
        created.append(topic_id)
        epochs = tuple(map(epoch_of, owners))
        return [TopicCreated(topic_id, name, epochs, {}, internal=internal)]

    await metadata.append(epoch_of(one), build)
    return created[-1]


async def refreshed(*brokers: OneBroker) -> None:
    """Every broker has read the metadata log to its end."""
    for each in brokers:
        await each.broker.membership.metadata.refresh()


@asynccontextmanager
async def divided(
    world: World,
    *leads: int,
    coordinator: int = 1,
    groups: int = 1,
    brokers: int = 2,
) -> AsyncIterator[list[OneBroker]]:
    """Brokers with ids from 0: which of them coordinate transactions and groups, and which lead the
    partitions."""
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(world.broker(number)) for number in range(brokers)
        ]
        first = running[0]
        await refreshed(first)
        await create(first, TRANSACTION_TOPIC, running[coordinator], internal=True)
        await create(first, GROUP_TOPIC, running[groups], internal=True)
        if leads:
            await create(first, TOPIC, *[running[number] for number in leads])
        await refreshed(*running)
        yield running


class RoutedClient(TransactionalClient):
    """A producer that asks the coordinator and the leaders, as clients do."""

    def __init__(
        self,
        coordinator: OneBroker,
        leaders: Sequence[OneBroker],
        groups: OneBroker,
        version: int = SECOND,
        transactional_id: str = "t",
    ) -> None:
        super().__init__(coordinator, transactional_id, version)
        self.coordinator = coordinator
        self.leaders = list(leaders)
        self.groups = groups

    async def send_batch(
        self,
        records: Sequence[NewRecord],
        partition: int = 0,
        *,
        topic: str = TOPIC,
        adds: bool = True,
        compression: Compression = Compression.NONE,
    ) -> ErrorCode:
        if self.version == FIRST and adds:
            error = await self.add(partition, topic=topic)
            if error is not OK:
                return error
        self.broker = self.leaders[partition]
        try:
            return await super().send_batch(
                records, partition, topic=topic, adds=False, compression=compression
            )
        finally:
            self.broker = self.coordinator

    async def commit_offset(
        self, offset: int, *, topic: str = TOPIC, adds: bool = True
    ) -> ErrorCode:
        if self.version == FIRST and adds:
            error = await self.add_group()
            if error is not OK:
                return error
        self.broker = self.groups
        try:
            return await super().commit_offset(offset, topic=topic, adds=False)
        finally:
            self.broker = self.coordinator


class Wire:
    """One broker's requests to other brokers. A test can cut the wire and lose answers."""

    def __init__(self, one: OneBroker) -> None:
        self._connections: Any = one.broker.coordination.admissions._peers._connections
        self._request = self._connections.request
        self._connections.request = self._carry
        self.cut: set[str] = set()
        """The purposes whose requests do not arrive."""
        self.deaf: set[str] = set()
        """The purposes whose answers do not arrive."""
        self.held: dict[str, asyncio.Event] = {}
        """The purposes whose requests are on their way until the event."""
        self.carried: Counter[str] = Counter()
        self.answers: list[Any] = []
        self._sent: list[tuple[Epoch, str, Any]] = []

    async def repeat(self, purpose: str) -> list[Any]:
        """Send every earlier request of this purpose again, as a network does that delays
        copies."""
        sent = [each for each in self._sent if each[1] == purpose]
        return [await self._request(*each) for each in sent]

    async def _carry(self, peer: Epoch, purpose: str, message: Any) -> Any:
        if purpose in self.cut:
            raise PeerUnreachable("the request is lost")
        if purpose in self.held:
            await self.held[purpose].wait()
        self._sent.append((peer, purpose, message))
        answer = await self._request(peer, purpose, message)
        self.carried[purpose] += 1
        self.answers.append(answer)
        if purpose in self.deaf:
            raise PeerUnreachable("the answer is lost")
        return answer
