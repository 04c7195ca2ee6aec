"""The thread, event loop and environment of one incarnation of a test's broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Final

import uvloop

from tidelog.broker.broker import Broker
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.options import BrokerOptions
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership import processes
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.entropy import SystemEntropy
from tidelog.network import SocketNetwork
from tidelog.storage.stores.location import open_store
from tidelog.workers.offload import ThreadOffload

ANY_PORT: Final = ("127.0.0.1", 0)
_incarnations = itertools.count(1)
_alive: set[int] = set()
"""The start times that stand for this process's brokers that run."""


class BrokerThread:
    """Start it once, end it once."""

    def __init__(
        self, store: str, settings: Mapping[str, object], address: tuple[str, int] | None
    ) -> None:
        self._store = store
        self._settings = BrokerSettings.of(
            **{name.replace(".", "_"): value for name, value in settings.items()}
        )
        self._address = address or ANY_PORT
        self._identity = _next_identity()
        self._started: Future[tuple[str, int]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="tidelog-broker", daemon=True)

    def start(self) -> tuple[str, int]:
        """The broker's address, when it serves. Raises what ended its start."""
        self._thread.start()
        return self._started.result()

    @property
    def is_alive(self) -> bool:
        """Whether the broker has not ended, by an error of its own either."""
        return self._thread.is_alive()

    def end(self, *, politely: bool) -> None:
        """Stop the broker, or cut it off; return when its thread has ended."""
        assert self._loop is not None
        # The loop of a broker that has ended by itself is closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop if politely else self._cut_off)
        self._thread.join()

    def _stop(self) -> None:
        assert self._broker is not None
        self._broker.stop()

    def _cut_off(self) -> None:
        assert self._serving is not None
        _alive.discard(self._identity.start_time)
        self._serving.cancel()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            _alive.discard(self._identity.start_time)

    async def _serve(self) -> None:
        async with AsyncExitStack() as closing:
            options = BrokerOptions(
                settings=self._settings,
                broker_id=None,
                listen=self._address,
                process=self._identity,
                is_running=_is_running,
            )
            broker = Broker(options, self._environment(closing), BrokerMetrics())
            self._broker, self._loop = broker, asyncio.get_running_loop()
            _alive.add(self._identity.start_time)
            self._serving = asyncio.create_task(broker.run())
            await broker.ready.wait()
            if broker.running is not None:
                self._started.set_result(broker.running.membership.listening)
            await self._serving

    def _environment(self, closing: AsyncExitStack) -> BrokerEnvironment:
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_store(self._store, clock, entropy)
        closing.push_async_callback(store.close)

        def threads(name: str) -> ThreadOffload:
            offload = ThreadOffload(1, name)
            closing.callback(offload.close)
            return offload

        return BrokerEnvironment.of(
            store,
            clock,
            entropy,
            SocketNetwork(),
            threads("tidelog-testing"),
            background=threads("tidelog-testing-background"),
        )


def _next_identity() -> ProcessIdentity:
    """Brokers of one process are told apart as if each were a process of its own."""
    return processes.part_of(processes.current(), next(_incarnations))


def _is_running(other: ProcessIdentity) -> bool | None:
    current = processes.current()
    if other.pid == current.pid and other.host == current.host and other.start_time < 0:
        return other.start_time in _alive
    return processes.is_running(other)
