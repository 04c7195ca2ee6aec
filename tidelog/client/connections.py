"""Connections to brokers: one for each key, opened on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

from tidelog.client.errors import RequestFailed, RequestOutcome
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import Address, BrokerConnection, address_text
from tidelog.errors import without_frames
from tidelog.network import Network
from tidelog.protocol.frames import new_scratch

K = TypeVar("K", bound=Hashable)


class _Opening:
    """The attempts to open a key's connection, one at a time."""

    __slots__ = ("failed", "failure", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failed = 0
        self.failure: RequestFailed | None = None


class Connections(Generic[K]):
    """Open connections by key. Nothing is retried: a connection that ends is replaced on demand."""

    def __init__(self, network: Network, settings: ClientSettings) -> None:
        self.settings = settings
        self._network = network
        self._scratch = new_scratch()
        self._open: dict[K, BrokerConnection] = {}
        self._opening: dict[K, _Opening] = {}
        self._closed = False

    def any_open(self) -> BrokerConnection | None:
        """An open connection, if there is one."""
        return next((each for each in self._open.values() if each.is_open), None)

    async def get(self, key: K, address: Address) -> BrokerConnection:
        """The connection of a key, opened to this address if there is none.

        Raises:
            RequestFailed: the broker is unreachable.
        """
        opening = self._opening.setdefault(key, _Opening())
        failed = opening.failed
        # One task at a time opens a key's connection. The others share its outcome: if each tried
        # in turn, the last one would wait for all of their timeouts.
        async with opening.lock:
            self._check_usable(address)
            connection = self._open.get(key)
            if connection is not None and connection.is_open:
                return connection
            if opening.failure is not None and opening.failed > failed:
                raise opening.failure
            self._forget_ended()
            try:
                connection = await BrokerConnection.open(
                    self._network, address, self.settings, self._scratch
                )
            except RequestFailed as failure:
                opening.failed += 1
                opening.failure = without_frames(failure)
                raise
            if self._closed:
                await connection.close()
                self._check_usable(address)
            self._open[key] = connection
            return connection

    def abort(self, key: K, why: str) -> None:
        """Close a key's connection at once, if there is one. Unanswered requests fail."""
        connection = self._open.get(key)
        if connection is not None:
            connection.abort(why)

    async def close(self) -> None:
        """Close all connections. Unanswered requests fail."""
        self._closed = True
        connections = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _check_usable(self, address: Address) -> None:
        if self._closed:
            why = "the client is closed"
            raise RequestFailed(
                "connecting", address_text(address), RequestOutcome.NOT_APPLIED, why
            )

    def _forget_ended(self) -> None:
        """Drop ended connections, and the locks of keys without a connection."""
        for key, connection in list(self._open.items()):
            if not connection.is_open:
                del self._open[key]
        for key, opening in list(self._opening.items()):
            if key not in self._open and not opening.lock.locked():
                del self._opening[key]
