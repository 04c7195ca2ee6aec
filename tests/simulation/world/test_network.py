"""The simulated network: a byte stream stays a byte stream, even when connections break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import NetworkSettings, SimulatedNetwork
from tests.simulation.world.process import SimulatedProcess


class Peer(asyncio.Protocol):
    """Collects received bytes, and the end of the connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended: asyncio.Future[BaseException | None]
        self.ended = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.pauses = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def pause_writing(self) -> None:
        self.pauses += 1
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.ended.set_result(exc)
        self.changed.set()

    async def read(self, size: int) -> bytes:
        """Wait until this many bytes have arrived."""
        while len(self.received) < size:
            self.changed.clear()
            await self.changed.wait()
        return bytes(self.received)

    async def end(self) -> BaseException | None:
        """Wait for connection_lost."""
        return await self.ended


class SmallBuffers(asyncio.BufferedProtocol):
    """Lends buffers of changing size, and pauses in the middle of a stream."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.received = bytearray()
        self.buffer = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        self.buffer = bytearray(self.random.randint(1, 3000))
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]
        if self.random.random() < 0.2:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.01, self.transport.resume_reading)


class World:
    """One server process on host `s`, one client process on host `c`."""

    def __init__(self, loop: SimulatedLoop, seed: int, **settings: float) -> None:
        self.loop = loop
        self.network = SimulatedNetwork(loop, seed, NetworkSettings(**settings))
        self.server = SimulatedProcess(loop, "server", "s")
        self.client = SimulatedProcess(loop, "client", "c")
        self.accepted: list[Peer] = []
        self.arrived = asyncio.Event()

    def accept(self) -> Peer:
        peer = Peer()
        self.accepted.append(peer)
        self.arrived.set()
        return peer

    async def serve(self, factory: Callable[[], asyncio.BaseProtocol] | None = None) -> None:
        await self.network.of(self.server).listen(factory or self.accept, "0.0.0.0", 9092)
        await asyncio.Event().wait()

    async def connect(self) -> Peer:
        peer = Peer()
        await self.network.of(self.client).connect(lambda: peer, "s", 9092)
        return peer


def simulate(story: Callable[[World], Awaitable[None]], seed: int = 1, **settings: float) -> None:
    """Run a story inside the client's process, with the server running."""

    async def main(loop: SimulatedLoop) -> None:
        world = World(loop, seed, **settings)
        world.server.start(world.serve)

        async def client() -> None:
            await story(world)

        await asyncio.sleep(0.01)
        world.client.start(client)
        ended = await world.client.exited()
        if ended.error is not None:
            raise ended.error

    with SimulatedLoop(seed) as loop:
        loop.run(main(loop), seconds_max=3600)
        assert loop.unhandled == []


@pytest.mark.parametrize("seed", range(8))
def test_the_stream_arrives_whole_and_in_order(seed: int) -> None:
    data = random.Random(seed).randbytes(300_000)

    async def story(world: World) -> None:
        receiver = SmallBuffers(seed)
        await world.network.of(world.server).listen(lambda: receiver, "", 9093)
        peer = Peer()
        transport = await world.network.of(world.client).connect(lambda: peer, "s", 9093)
        position = 0
        while position < len(data):
            await peer.writable.wait()
            size = world.network._random.randint(1, 30_000)
            piece = data[position : position + size]
            transport.writelines([piece[:7], memoryview(piece)[7:]])
            position += size
        transport.close()
        assert await peer.end() is None
        while len(receiver.received) < len(data):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert bytes(receiver.received) == data
        await asyncio.sleep(1)
        assert receiver.transport.is_closing()

    simulate(story, seed, cut_probability=0.5)


def test_a_reader_that_pauses_stops_the_writer() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        await asyncio.sleep(0.1)
        server = world.accepted[0]
        server.transport.pause_reading()
        written = 0
        for _ in range(100):
            if not peer.writable.is_set():
                break
            peer.transport.write(bytes(16 * 1024))
            written += 16 * 1024
            await asyncio.sleep(0.1)
        assert peer.pauses >= 1
        assert 256 * 1024 < written < 450 * 1024
        assert len(server.received) == 0
        server.transport.resume_reading()
        await peer.writable.wait()
        assert len(await server.read(written)) == written

    simulate(story)


def test_a_killed_process_resets_its_connections() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        world.server.kill()
        assert isinstance(await peer.end(), ConnectionResetError)
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    simulate(story, silent_death_probability=0.0)


def test_a_machine_that_is_gone_leaves_its_peers_waiting() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        world.server.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.shield(peer.end())
        peer.transport.write(b"is anybody there?")
        assert isinstance(await peer.end(), TimeoutError)
        with pytest.raises(TimeoutError):
            await world.connect()

    simulate(story, silent_death_probability=1.0)


def test_a_machine_that_came_back_knows_nothing_of_old_connections() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        world.server.kill()
        await asyncio.sleep(1)
        world.server = SimulatedProcess(world.loop, "server-2", "s")
        world.server.start(world.serve)
        await asyncio.sleep(1)
        peer.transport.write(b"hello again")
        assert isinstance(await peer.end(), ConnectionResetError)
        await world.connect()

    simulate(story, silent_death_probability=1.0)


def test_a_partition_holds_up_and_healing_delivers() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        await world.arrived.wait()
        world.network.partition("s", "c")
        peer.transport.write(b"waits")
        await asyncio.sleep(3)
        server = world.accepted[0]
        assert server.received == b""
        with pytest.raises(TimeoutError):
            await world.connect()
        world.network.heal()
        assert await server.read(5) == b"waits"

    simulate(story)


def test_a_connection_reset_reaches_both_ends() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        await asyncio.sleep(0.1)
        world.network.reset_connections("s")
        assert isinstance(await peer.end(), ConnectionResetError)
        assert isinstance(await world.accepted[0].end(), ConnectionResetError)

    simulate(story)


def test_a_severed_connection_is_silent_until_a_write() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        await asyncio.sleep(0.1)
        server = world.accepted[0]
        world.network.sever_connections("c")
        await asyncio.sleep(60)
        assert not peer.transport.is_closing()
        peer.transport.write(b"lost")
        assert isinstance(await peer.end(), TimeoutError)
        assert server.received == b""
        assert not server.transport.is_closing()
        await world.connect()

    simulate(story)


def test_a_paused_process_gets_its_bytes_in_order_when_it_goes_on() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        await asyncio.sleep(0.1)
        world.server.pause()
        for number in range(50):
            peer.transport.write(f"{number:03d}".encode())
            await asyncio.sleep(0.05)
        assert world.accepted[0].received == b""
        world.server.resume()
        received = await world.accepted[0].read(150)
        assert received == "".join(f"{number:03d}" for number in range(50)).encode()

    simulate(story, cut_probability=0.5)


def test_a_buffer_that_is_changed_after_the_write_reaches_the_peer_changed() -> None:
    async def story(world: World) -> None:
        peer = await world.connect()
        await asyncio.sleep(0.1)
        buffer = bytearray(b"before")
        peer.transport.write(buffer)
        buffer[:] = b"after!"
        assert await world.accepted[0].read(6) == b"after!"

    simulate(story)


def test_a_connect_that_is_given_up_is_closed_again() -> None:
    async def story(world: World) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.0005):
                await world.connect()
        await asyncio.sleep(5)
        assert all(not peer.transport.is_reading() for peer in world.accepted)

    simulate(story)


def test_a_connection_that_is_gone_before_it_is_accepted_is_made_and_lost() -> None:
    async def story(world: World) -> None:
        world.server.pause()
        peer = await world.connect()
        peer.transport.abort()
        await asyncio.sleep(1)
        assert world.accepted == []
        world.server.resume()
        await world.arrived.wait()
        assert isinstance(await world.accepted[0].end(), ConnectionResetError)

    simulate(story)


def test_an_address_is_given_once() -> None:
    async def story(world: World) -> None:
        network = world.network.of(world.server)
        with pytest.raises(OSError, match="in use"):
            await network.listen(Peer, "0.0.0.0", 9092)
        listener = await network.listen(Peer, "0.0.0.0", 0, accepting=False)
        host, port = listener.address
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Peer, host, port)
        await listener.accept()
        await network.connect(Peer, host, port)
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Peer, host, port)

    simulate(story)
