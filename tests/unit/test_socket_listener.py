"""Every accepted connection is handled or closed, even if its listener or its task is cancelled."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from contextlib import suppress

from tidelog.socket_listener import SocketListener


def test_a_connection_that_is_cancelled_before_its_first_step_is_closed() -> None:
    async def run() -> None:
        listener = await SocketListener.bind_plain(asyncio.Protocol, "127.0.0.1", 0)
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def delay() -> float:
            accepted.set_result(None)
            return 0.0

        await listener.accept(delay)
        with socket.create_connection(listener.address, timeout=30) as client:
            await accepted
            # The connection's task exists by now, but has not run.
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await listener.close()
            assert await asyncio.to_thread(client.recv, 1) == b""

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(run())
        # A forgotten socket warns now, and pytest reports the warning.
        gc.collect()


def test_a_connection_that_comes_while_the_listener_closes_is_closed() -> None:
    async def run() -> None:
        listener = await SocketListener.bind_plain(asyncio.Protocol, "127.0.0.1", 0)
        await listener.accept()
        # The listener waits for connections.
        await asyncio.to_thread(int)
        with socket.create_connection(listener.address, timeout=30) as client:
            await listener.close()
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""

    asyncio.run(run())
    gc.collect()


def test_every_connection_is_accepted_also_of_many_at_once() -> None:
    async def run() -> None:
        begun: list[asyncio.BaseTransport] = []
        all_begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                begun.append(transport)
                if len(begun) == 50:
                    all_begun.set_result(None)

        listener = await SocketListener.bind_plain(Counted, "127.0.0.1", 0)
        await listener.accept()
        clients = [socket.create_connection(listener.address, timeout=30) for _ in range(50)]
        async with asyncio.timeout(60):
            await all_begun
        await listener.close()
        for transport in begun:
            transport.close()
        for client in clients:
            client.close()

    asyncio.run(run())
