"""The broker's address, taken before there is a server for it.

A broker registers the address that it listens on, and serves only after that. Until then
connections are refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidelog.broker.settings.listeners import BoundListener, ListenerConfig
from tidelog.errors import Refused
from tidelog.network import Listener, Network
from tidelog.socket_listener import AcceptDelay, Handshake, HandshakeFactory, ProtocolFactory

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9092
PORTS_TRIED_MAX = 16
"""Several brokers on one machine need not name their ports."""


@dataclass(slots=True)
class _Door:
    """Makes the protocol of each new connection, or its handshake.

    The listener calls neither before `accept`.
    """

    protocol: ProtocolFactory = asyncio.Protocol
    handshake: HandshakeFactory = lambda _: None

    def new_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol()

    def new_handshake(self, host: str) -> Handshake | None:
        return self.handshake(host)


class ReservedAddress:
    """An address that this process holds until `close`."""

    def __init__(self, config: ListenerConfig, listener: Listener, door: _Door) -> None:
        self.config = config
        self._listener = listener
        self._door = door
        self.address = listener.address
        """The host and the port that were really taken."""

    @property
    def bound(self) -> BoundListener:
        """The listener with its addresses. A port 0 is advertised as the port that was taken."""
        host, port = self.config.advertised or self.address
        advertised = (host, port or self.address[1])
        return BoundListener(self.config.name, self.config.protocol, self.address, advertised)

    @classmethod
    async def of(cls, network: Network, config: ListenerConfig) -> ReservedAddress:
        """Take a listener's address. Refused if it cannot be had."""
        if config.address is None:
            return await cls.take_default(network, config)
        return await cls.take(network, config, *config.address)

    @classmethod
    async def take(
        cls, network: Network, config: ListenerConfig, host: str, port: int
    ) -> ReservedAddress:
        """Port 0 picks a free one. Refused if the address cannot be had."""
        door = _Door()
        try:
            if config.protocol.uses_tls:
                listener = await network.listen_tls(door.new_handshake, host, port)
            else:
                listener = await network.listen(door.new_protocol, host, port, accepting=False)
            return cls(config, listener, door)
        except OSError as error:
            raise Refused(
                f"cannot listen on {host}:{port}: {error.strerror}; stop the process there, or"
                " choose another address with --listen, or with listeners"
            ) from error

    @classmethod
    async def take_default(cls, network: Network, config: ListenerConfig) -> ReservedAddress:
        """Kafka's port on loopback, or the first free one behind it. Refused if none is free."""
        refused = None
        for port in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED_MAX):
            try:
                return await cls.take(network, config, DEFAULT_HOST, port)
            except Refused as error:
                refused = refused or error
        assert refused is not None
        raise refused

    async def accept(self, factory: ProtocolFactory, delay: AcceptDelay) -> None:
        """Accept connections from now on. OSError if another process listens there by now."""
        self._door.protocol = factory
        await self._listener.accept(delay)

    async def accept_tls(self, factory: HandshakeFactory, delay: AcceptDelay) -> None:
        """Accept connections with a handshake from now on. OSError as `accept`."""
        self._door.handshake = factory
        await self._listener.accept(delay)

    async def close(self) -> None:
        """Stop accepting. May be called again."""
        await self._listener.close()
