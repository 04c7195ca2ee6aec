"""The traffic of attacks: ill-behaved connections, and requests as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import NoReturn

from tidelog.protocol.headers import encode_request
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.topics import CreatableTopic, CreateTopicsRequest

Buffer = bytes | bytearray | memoryview


def request_bytes(request: Request[Response], version: int, correlation_id: int = 1) -> bytes:
    """A whole request with its size prefix."""
    return b"".join(encode_request(request, version, correlation_id, "attacker"))


def creation(topic: str, partitions: int) -> bytes:
    """A request that creates a topic."""
    new = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    return request_bytes(CreateTopicsRequest(topics=[new], timeout_ms=30_000), 5)


class Wire:
    """One connection of a raw socket. It reads only on request."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, address: tuple[str, int], receive_buffer_bytes: int = 0) -> Wire:
        """A connection. OSError if it is refused. `receive_buffer_bytes`: how many unread bytes the
        system buffers, or 0 for its default."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: Buffer) -> None:
        """Send all bytes, as fast as the broker takes them."""
        await self._loop.sock_sendall(self.socket, data)

    async def receive(self, size: int = 65536) -> bytes:
        """Receive bytes from the broker. ConnectionError if it has closed the connection."""
        data = await self._loop.sock_recv(self.socket, size)
        if not data:
            raise ConnectionResetError("closed by the broker")
        return data

    async def ask(self, request: bytes) -> bytes:
        """Send a request, and wait for its answer's frame, which is returned without its size."""
        await self.send(request)
        data = bytearray()
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += await self.receive()
        return bytes(data[4:])

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


async def again_and_again(step: Callable[[], Awaitable[None]], pause_seconds: float) -> NoReturn:
    """Repeat a step that the broker may end at any time, for ever."""
    while True:
        with contextlib.suppress(OSError):
            await step()
        await asyncio.sleep(pause_seconds)


async def side_by_side(count: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Run this many attackers, each with its number."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(_coroutine(one(number)))


async def _coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable
