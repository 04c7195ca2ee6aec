"""Brokers for the administrative handlers: a real metadata log in memory, and no data path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import Services
from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.broker.ownership.partition_moves import PartitionMoves
from tidelog.broker.ownership.partition_recovery import PartitionRecovery
from tidelog.broker.peers.peers import Peers
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.settings.listeners import BoundListener
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig, effective_topic_config
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.broker.topics.topic_creation import AutoCreations
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.membership.takeover import all_to, successions
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    BrokerFenced,
    BrokerRegistered,
    ConfigScope,
    IncarnationRetired,
)
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot, TopicId, TopicPartition
from tidelog.network import SocketNetwork
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.message import Request, Response
from tidelog.security.security_protocol import SecurityProtocol
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore

T = TypeVar("T")
R = TypeVar("R", bound=Response)
Handler = Callable[[Services, Any, RequestContext], Awaitable[Response | None]]


class Sizes:
    """The partitions that a broker leads, with made-up sizes."""

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def wal_bytes(self, place: TopicPartition) -> int | None:
        tenure = self._broker.state.leader(place)
        if tenure is None or tenure.incarnation != self._broker.incarnation:
            return None
        return 1000 + place.partition


class Tables:
    """Made-up sizes of the tables of topics."""

    async def stored_bytes(self, topic_id: TopicId) -> Mapping[int, int]:
        return {1: 500}


class Renewal:
    """Reads the metadata log whenever a handler waits for a newer view."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self.waits = 0

    async def renewed(self, *, even_if_alone: bool = False) -> None:
        self.waits += 1
        await self._metadata.refresh()


class NothingToGive:
    """Gives no partition away, since a broker without a data path has none."""

    under_way: Mapping[TopicPartition, Epoch] = MappingProxyType({})

    async def give(self, receivers: Mapping[TopicPartition, Epoch]) -> frozenset[TopicPartition]:
        return frozenset()


class NothingToOpen:
    """Opens no partition, since a broker without a data path has none."""

    opening: Sequence[TopicPartition] = ()


class AdministeredBroker:
    """The parts of a broker that handlers use, around a separate metadata log."""

    def __init__(
        self,
        metadata: MetadataLog,
        incarnation: Incarnation,
        settings: BrokerSettings,
        store: ObjectStore,
    ) -> None:
        self.store = store
        self.metadata = metadata
        self.renewal = Renewal(metadata)
        self.incarnation = incarnation
        self.moves = PartitionMoves(
            lambda: metadata.state,
            incarnation,
            cast(PartitionGiving, NothingToGive()),
            cast(PartitionRecovery, NothingToOpen()),
            cast(Peers, None),
        )
        self.static_settings = settings
        self.clock = SystemClock()
        self.departures = Departures(metadata, self.clock)
        self.entropy = SeededEntropy(incarnation.epoch)
        self.network = SocketNetwork()
        self.metrics = BrokerMetrics()
        self.listeners = (
            BoundListener("PLAINTEXT", SecurityProtocol.PLAINTEXT, ("::", 9092), ("host", 9092)),
        )
        self.partitions = Sizes(self)
        self.tables = Tables()
        self.turns = SliceTurns()
        self.auto_creations = AutoCreations()
        self.limits = LimitsMet(self.metrics.registry, self.clock)
        self.authorizer: Authorizer | None = None
        self.quotas = ClientQuotas(lambda: self.settings, QuotaMetrics())

    @property
    def state(self) -> ClusterState:
        return self.metadata.state

    async def take_over(self, dead: Incarnation) -> None:
        """Retire a fenced incarnation. Without a data path there is no WAL to seal."""
        owners = all_to(self.incarnation.epoch)(self.state, dead.epoch)
        retired = IncarnationRetired(dead.epoch, Slot(0), successions(owners))
        await self.metadata.append(self.incarnation.epoch, lambda _: (retired,))

    @property
    def settings(self) -> BrokerSettings:
        return self.static_settings.overridden(
            self.state.configs(ConfigScope.CLUSTER, ""),
            self.state.configs(ConfigScope.BROKER, str(self.incarnation.broker_id)),
        )

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        return effective_topic_config(self.state.topics[topic_id].configs, self.settings)

    def topic(self, name: str) -> Topic:
        """An existing topic."""
        topic = self.state.topic_named(name)
        assert topic is not None
        return topic

    def owners(self, name: str) -> list[int]:
        """The broker ids of a topic's partitions."""
        return [tenures[-1].incarnation.broker_id for tenures in self.topic(name).partitions]

    async def ask(
        self, handler: Handler, request: Request[R], version: int, listener: str = "PLAINTEXT"
    ) -> R:
        """Call a handler as the server does: with a request that was encoded and decoded. The
        answer must be encodable too."""
        received = decode(type(request), b"".join(map(bytes, encode(request, version))), version)
        context = RequestContext(version, 1, "test", "127.0.0.1", 1, listener)
        answer = await handler(cast(Services, self), received, context)
        assert answer is not None
        sent = b"".join(map(bytes, encode(answer, version)))
        return cast(R, decode(type(answer), sent, version))

    async def end(self) -> None:
        """Fence the incarnation, as a polite stop does."""
        epoch = self.incarnation.epoch
        await self.metadata.append(epoch, lambda _: (BrokerFenced(epoch),))


async def new_broker(
    store: ObjectStore, broker_id: int = 1, **settings: object
) -> AdministeredBroker:
    """A registered broker on the bucket."""
    clock, entropy = SystemClock(), SeededEntropy(f"log {broker_id}")
    metadata = await MetadataLog.open(store, clock, entropy, create=True)
    process = ProcessIdentity("host", "boot", "namespace", broker_id, broker_id)
    record = BrokerRegistered(
        BrokerId(broker_id),
        f"host{broker_id}",
        9092 + broker_id,
        process,
        version=BROKER_VERSION,
    )
    epoch = Epoch(await metadata.append(None, lambda _: (record,)))
    return AdministeredBroker(
        metadata, Incarnation(BrokerId(broker_id), epoch), BrokerSettings.of(**settings), store
    )


def administer(
    story: Callable[[AdministeredBroker], Coroutine[Any, Any, T]], **settings: object
) -> T:
    """Run a story with one broker on a new bucket."""

    async def main() -> T:
        broker = await new_broker(MemoryStore(SystemClock()), **settings)
        try:
            return await story(broker)
        finally:
            await broker.metadata.close()

    return asyncio.run(main())
