"""The network between simulated hosts: delays, segments cut anywhere, partitions, resets."""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
from collections import Counter
from dataclasses import dataclass

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.transport import SimulatedTransport
from tidelog.network import Listener
from tidelog.socket_listener import AcceptDelay, HandshakeFactory, ProtocolFactory, no_delay

_FIRST_PORT = 40_000
CONNECT_SECONDS_MAX = 10.0
"""How long a connect waits for a host that does not answer."""


@dataclass(slots=True)
class NetworkSettings:
    """The behaviour of the network without an injected fault."""

    delay_seconds_min: float = 0.0002
    delay_seconds_max: float = 0.002
    slow_probability: float = 0.01
    slow_seconds_max: float = 0.2
    cut_probability: float = 0.1
    silent_death_probability: float = 0.25
    """A process that dies takes its machine along, and its peers are not informed."""


class SimulatedNetwork:
    """All hosts, listeners and connections of one simulation."""

    def __init__(
        self, loop: SimulatedLoop, seed: int | str, settings: NetworkSettings | None = None
    ) -> None:
        self.loop = loop
        self.settings = settings if settings is not None else NetworkSettings()
        self.counts: Counter[str] = Counter()
        self._random = random.Random(f"network {seed}")
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._transports: dict[int, SimulatedTransport] = {}
        self._partitions: set[frozenset[str]] = set()
        self._silent_hosts: set[str] = set()
        self._processes: set[str] = set()
        self._next_port = _FIRST_PORT
        self._next_number = 0

    def of(self, process: SimulatedProcess) -> ProcessNetwork:
        """The network as this process sees it: the Network that its code takes."""
        if process.host in self._silent_hosts:
            self._silent_hosts.discard(process.host)
            self._move_on()
        process.at_death(lambda: self._process_died(process))
        return ProcessNetwork(self, process)

    # --- faults ---

    def partition(self, one: str, other: str) -> None:
        """Carry nothing between two hosts. Connections stay, and bytes that are sent wait."""
        self._partitions.add(frozenset((one, other)))
        self.counts["partitions"] += 1
        self._note(f"partition {one} | {other}")

    def heal(self) -> None:
        """End all partitions."""
        if self._partitions:
            self._partitions.clear()
            self._note("healed")
            self._move_on()

    def reset_connections(self, host: str, share: float = 1.0) -> None:
        """Break connections of a host, each with probability `share`. Both ends learn of it."""
        for transport in self._of_host(host):
            if self._random.random() < share:
                self.counts["resets"] += 1
                error = ConnectionResetError("reset by a middlebox")
                for end in (transport, transport.peer):
                    self.loop.call_system(self.delay(), end.break_off, error)
        self._note(f"resets at {host}")

    def sever_connections(self, host: str, share: float = 1.0) -> None:
        """Lose connections silently: neither end hears of it until it waits for an answer too long.

        An end with unsent bytes gives up after a while, as TCP does.
        """
        for transport in self._of_host(host):
            if self._random.random() < share:
                self.counts["severed"] += 1
                for end in (transport, transport.peer):
                    end.severed = True
                    self._give_up_later(end)
        self._note(f"connections of {host} are severed")

    def _move_on(self) -> None:
        for transport in list(self._transports.values()):
            transport.move_on()

    def _give_up_later(self, end: SimulatedTransport) -> None:
        self.loop.call_system(self._random.uniform(5.0, 20.0), self._give_up, end)

    def _give_up(self, end: SimulatedTransport) -> None:
        if end.is_open and end.has_unsent:
            end.break_off(TimeoutError(errno.ETIMEDOUT, "the other end does not acknowledge"))
        elif end.is_open:
            self._give_up_later(end)

    # --- the wire (see transport.Wire) ---

    def delay(self) -> float:
        """Seconds that the next segment travels."""
        settings = self.settings
        if self._random.random() < settings.slow_probability:
            return self._random.uniform(settings.delay_seconds_max, settings.slow_seconds_max)
        return self._random.uniform(settings.delay_seconds_min, settings.delay_seconds_max)

    def cut(self, size: int) -> int:
        """How many of `size` bytes go in the next segment."""
        if self._random.random() >= self.settings.cut_probability:
            return size
        # Segments often end within the first bytes, where length fields and headers are.
        return self._random.randint(1, min(size, 12) if self._random.random() < 0.5 else size)

    def carries(self, transport: SimulatedTransport) -> bool:
        """Whether anything gets from this end to the other one now."""
        return not transport.severed and self.connected(transport.local[0], transport.remote[0])

    def forget(self, transport: SimulatedTransport) -> None:
        """The transport is closed."""
        self._transports.pop(transport.number, None)

    def peers(self, host: str) -> list[str]:
        """The hosts that have connections with this one."""
        return list(dict.fromkeys(end.remote[0] for end in self._of_host(host)))

    def connected(self, one: str, other: str) -> bool:
        """Whether no partition lies between two hosts, and neither has fallen silent."""
        return frozenset((one, other)) not in self._partitions and not (
            self._silent_hosts and not self._silent_hosts.isdisjoint((one, other))
        )

    # --- connections ---

    def bind(
        self, process: SimulatedProcess, factory: ProtocolFactory, port: int, accepting: bool
    ) -> SimulatedListener:
        """Listen on a host's port; 0 picks a free one."""
        if port == 0:
            port = self._free_port()
        address = (process.host, port)
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"address {address} is in use")
        listener = self._listeners[address] = SimulatedListener(
            self, process, factory, address, accepting
        )
        return listener

    def unbind(self, listener: SimulatedListener) -> None:
        """Stop listening."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def dial(
        self, process: SimulatedProcess, host: str, port: int
    ) -> asyncio.Future[SimulatedTransport]:
        """A connection to the listener there; the future is the caller's end."""
        answer: asyncio.Future[SimulatedTransport] = self.loop.create_future()
        self.loop.call_system(self.delay(), self._dialed, process, host, port, answer)
        return answer

    def _dialed(
        self,
        process: SimulatedProcess,
        host: str,
        port: int,
        answer: asyncio.Future[SimulatedTransport],
    ) -> None:
        listener = self._listeners.get((host, port))
        if not self.connected(process.host, host):
            error: OSError = TimeoutError(errno.ETIMEDOUT, f"{host}:{port} does not answer")
            self.loop.call_system(CONNECT_SECONDS_MAX, _fail, answer, error)
        elif listener is None or not listener.accepting:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refuses")
            self.loop.call_system(self.delay(), _fail, answer, error)
        elif process.alive:
            near = self._new_end(process, (process.host, self._free_port()), (host, port))
            far = self._new_end(listener.process, (host, port), near.local)
            near.peer, far.peer = far, near
            self.counts["connections"] += 1
            self._note(f"connect {process.name} > {host}:{port}")
            self.loop.call_soon(
                lambda: far.attach(listener.factory()), context=listener.process.context.copy()
            )
            self.loop.call_system(self.delay(), _answer, answer, near)

    def _new_end(
        self, process: SimulatedProcess, local: tuple[str, int], remote: tuple[str, int]
    ) -> SimulatedTransport:
        self._next_number += 1
        end = SimulatedTransport(self, process, self._next_number, local, remote)
        self._transports[end.number] = end
        return end

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def _of_host(self, host: str) -> list[SimulatedTransport]:
        return [end for end in self._transports.values() if end.local[0] == host]

    def _process_died(self, process: SimulatedProcess) -> None:
        silent = (
            process.exit is not None
            and process.exit.killed
            and self._random.random() < self.settings.silent_death_probability
        )
        for listener in [one for one in self._listeners.values() if one.process is process]:
            self.unbind(listener)
        for end in [end for end in self._transports.values() if end.process is process]:
            if not silent:
                end.reset_peer()
            end.vanish()
            if silent:
                self._give_up_later(end.peer)
        if silent:
            self.counts["silent deaths"] += 1
            self._silent_hosts.add(process.host)

    def _note(self, line: str) -> None:
        self.loop.trace.record(self.loop.time(), f"network {line}")


class SimulatedListener:
    """See tidelog.network.Listener."""

    def __init__(
        self,
        network: SimulatedNetwork,
        process: SimulatedProcess,
        factory: ProtocolFactory,
        address: tuple[str, int],
        accepting: bool,
    ) -> None:
        self.process = process
        self.factory = factory
        self.accepting = accepting
        self._network = network
        self._address = address

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def accept(self, delay: AcceptDelay = no_delay) -> None:
        """No simulated broker has a rate of connections: `delay` has no effect."""
        self.accepting = True

    async def close(self) -> None:
        if self.process.alive:
            self._network.unbind(self)


class ProcessNetwork:
    """See tidelog.network.Network. A process always listens under its host's name."""

    def __init__(self, network: SimulatedNetwork, process: SimulatedProcess) -> None:
        self._network = network
        self._process = process

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, accepting: bool = True
    ) -> Listener:
        return self._network.bind(self._process, factory, port, accepting)

    async def listen_tls(self, factory: HandshakeFactory, host: str, port: int) -> Listener:
        raise OSError(errno.EPROTONOSUPPORT, "the simulated network has no TLS")

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> asyncio.Transport:
        if tls is not None:
            raise OSError(errno.EPROTONOSUPPORT, "the simulated network has no TLS")
        answer = self._network.dial(self._process, host, port)
        try:
            transport = await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:
                answer.result().abort()
            raise
        finally:
            del answer  # Its error refers to this frame.
        transport.attach(factory())
        return transport


def _answer(answer: asyncio.Future[SimulatedTransport], transport: SimulatedTransport) -> None:
    if answer.cancelled():
        # The caller gave up while the connection was being made.
        transport.abort()
    else:
        answer.set_result(transport)


def _fail(answer: asyncio.Future[SimulatedTransport], error: OSError) -> None:
    if not answer.cancelled():
        answer.set_exception(error)
