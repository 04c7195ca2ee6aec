"""A client of a whole cluster: connections to its brokers, and its metadata."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TypeVar, cast

from tidelog.client.connections import Connections
from tidelog.client.errors import ReadRefused, RequestFailed, RequestOutcome, no_topic
from tidelog.client.metadata import MetadataCache, TopicMetadata
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import Address, BrokerConnection
from tidelog.clock import Clock
from tidelog.network import Network
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest

R = TypeVar("R", bound=Response)


class CoordinatorKind(enum.IntEnum):
    """The key type of a coordinator request."""

    GROUP = 0
    TRANSACTION = 1


class Client:
    """Sends requests to the right broker, over one connection per broker, opened on demand.

    The client retries nothing: only the caller knows whether a retry is safe. After a failure to
    reach a leader, the client drops the topic's metadata, so the next attempt looks the leader up.
    A waiting fetch blocks its connection: a caller with other requests meanwhile needs two clients.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        bootstrap: Sequence[Address],
        settings: ClientSettings | None = None,
    ) -> None:
        """`bootstrap` are addresses of some brokers."""
        if not bootstrap:
            raise ValueError("a client needs the address of at least one broker")
        self.settings = settings if settings is not None else ClientSettings()
        self._clock = clock
        self._bootstrap = list(bootstrap)
        self._connections: Connections[Address] = Connections(network, self.settings)
        self._cache = MetadataCache(self.settings.metadata_age_ms_max, self.settings.topics_max)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Unanswered requests fail."""
        await self._connections.close()

    # --- requests ---

    async def request_any(self, message: Request[R], timeout_ms: int | None = None) -> R:
        """Ask the first reachable broker: connected, then known, then bootstrap.

        Raises:
            RequestFailed: no broker was reachable, or the chosen one did not answer.
        """
        connection = await self.any_connection()
        return await connection.request(message, timeout_ms=timeout_ms)

    async def request_broker(
        self, broker_id: int, message: Request[R], timeout_ms: int | None = None
    ) -> R:
        """Ask one broker.

        Raises:
            RequestFailed: the broker was unreachable, or did not answer.
        """
        connection = await self.connection_to(broker_id)
        return await connection.request(message, timeout_ms=timeout_ms)

    async def request_to_leader(
        self,
        topic: str,
        partition: int,
        message: Request[R],
        timeout_ms: int | None = None,
        *,
        version_max: int | None = None,
    ) -> R:
        """Ask the leader of a partition, with at most `version_max`.

        Raises:
            RequestRefused: the partition does not exist, or has no leader.
            RequestFailed: the leader was unreachable, or did not answer.
        """
        connection = await self.leader_connection(topic, partition)
        version = _version(connection, message, version_max)
        try:
            return await connection.request(message, version, timeout_ms)
        except RequestFailed:
            self.forget(topic)
            raise

    async def request_to_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        message: Request[R],
        timeout_ms: int | None = None,
        *,
        version_max: int | None = None,
    ) -> R:
        """Ask the coordinator of a group or of a transactional id, with at most `version_max`.

        Each call looks the coordinator up.

        Raises:
            RequestRefused: no coordinator is available.
            RequestFailed: the coordinator was unreachable, or did not answer.
        """
        connection = await self.coordinator_connection(kind, key)
        version = _version(connection, message, version_max)
        return await connection.request(message, version, timeout_ms)

    # --- connections ---

    async def any_connection(self) -> BrokerConnection:
        """A connection to any broker.

        Raises:
            RequestFailed: no broker was reachable; the message names each address and reason.
        """
        connection = self._connections.any_open()
        if connection is not None:
            return connection
        failures: list[RequestFailed] = []
        async for attempt in self._attempts():
            if isinstance(attempt, BrokerConnection):
                return attempt
            failures.append(attempt)
        where = ", ".join(failure.address for failure in failures)
        why = "; ".join(dict.fromkeys(failure.why for failure in failures))
        raise RequestFailed("connecting", where, RequestOutcome.NOT_APPLIED, why)

    async def connection_to(self, broker_id: int) -> BrokerConnection:
        """The connection to a broker.

        Raises:
            RequestFailed: the broker is unknown or unreachable.
        """
        if broker_id not in self._cache.brokers:
            await self.metadata([])
        address = self._cache.brokers.get(broker_id)
        if address is None:
            known = ", ".join(map(str, sorted(self._cache.brokers))) or "none"
            why = f"there is no such broker (known: {known})"
            raise RequestFailed(
                "connecting", f"broker {broker_id}", RequestOutcome.NOT_APPLIED, why
            )
        try:
            return await self._connection(address)
        except RequestFailed:
            # The broker may have returned at another address.
            self._cache.brokers.pop(broker_id, None)
            raise

    async def leader_connection(self, topic: str, partition: int) -> BrokerConnection:
        """The connection to a partition's leader.

        Raises:
            RequestRefused: the partition does not exist, or has no leader.
            RequestFailed: the leader is unreachable.
        """
        leader_id = await self.leader(topic, partition)
        try:
            return await self.connection_to(leader_id)
        except RequestFailed:
            self.forget(topic)
            raise

    async def coordinator_connection(self, kind: CoordinatorKind, key: str) -> BrokerConnection:
        """The connection to the coordinator of a group or of a transactional id.

        Raises:
            RequestRefused: no coordinator is available.
            RequestFailed: the coordinator was unreachable.
        """
        return await self._connection(await self.find_coordinator(kind, key))

    async def _attempts(self) -> AsyncIterator[BrokerConnection | RequestFailed]:
        """A connection, or the failure, for each known address."""
        for address in dict.fromkeys([*self._cache.brokers.values(), *self._bootstrap]):
            try:
                yield await self._connection(address)
            except RequestFailed as failure:
                yield failure

    async def _connection(self, address: Address) -> BrokerConnection:
        return await self._connections.get(address, address)

    # --- metadata ---

    async def metadata(self, topics: Sequence[str] | None) -> MetadataResponse:
        """Request brokers and topics (None: all topics), and cache the response."""
        names = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        response = await self.request_any(request)
        self._cache.learn(response, self._clock.monotonic())
        return response

    async def topic(self, name: str) -> TopicMetadata:
        """A topic's metadata, requested if the cache lacks it or it is too old.

        Raises:
            RequestRefused: the topic does not exist.
        """
        known = self._cache.topic(name, self._clock.monotonic())
        if known is not None:
            return known
        response = await self.metadata([name])
        for topic in response.topics:
            if topic.name == name and topic.error_code != ErrorCode.NONE:
                raise no_topic(name, topic.error_code)
        known = self._cache.topic(name, self._clock.monotonic())
        if known is None:
            raise no_topic(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return known

    async def leader(self, topic: str, partition: int) -> int:
        """The broker id of a partition's leader.

        Raises:
            RequestRefused: the partition does not exist, or has no leader.
        """
        subject = f"partition {topic}-{partition}"
        partitions = (await self.topic(topic)).partitions
        found = partitions.get(partition)
        if found is None:
            self.forget(topic)
            why = f"the topic has {len(partitions)} partitions, from 0 on"
            raise ReadRefused(subject, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        if found.leader_id < 0:
            self.forget(topic)
            raise ReadRefused(subject, found.error_code or ErrorCode.LEADER_NOT_AVAILABLE)
        return found.leader_id

    def forget(self, topic: str) -> None:
        """Drop a topic's metadata that proved wrong; the next use requests it again."""
        self._cache.forget(topic)

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        """The address of the coordinator of a group or of a transactional id.

        Raises:
            RequestRefused: no coordinator is available.
        """
        request = FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key])
        response = await self.request_any(request)
        subject = f"coordinator of {kind.name.lower()} {key}"
        for found in response.coordinators:
            if found.error_code != ErrorCode.NONE:
                raise ReadRefused(subject, found.error_code, found.error_message)
            return found.host, found.port
        if response.error_code != ErrorCode.NONE:
            raise ReadRefused(subject, response.error_code, response.error_message)
        return response.host, response.port


def _version(connection: BrokerConnection, message: Request[R], version_max: int | None) -> int:
    """The version in which to send a message."""
    version = connection.version_of(cast("type[Request[Response]]", type(message)))
    return version if version_max is None else min(version, version_max)
