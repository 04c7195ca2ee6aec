"""The life of one broker incarnation: start it (`startup`), serve, end it (`shutdown`).

If the outcome of an append is unknown, `run` ends with the reason. It also ends at any sign that
another incarnation has superseded this one. A new incarnation starts from the bucket. A polite stop
finishes requests, flushes the WAL, writes a checkpoint and fences the incarnation. Then a successor
on any machine need not wait for the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.opened_cluster import open_cluster
from tidelog.broker.options import BrokerOptions
from tidelog.broker.running import RunningBroker
from tidelog.broker.shutdown import shut_down
from tidelog.broker.startup import startup
from tidelog.broker.telemetry.metrics import BrokerMetrics

logger = logging.getLogger(__name__)

_NOT_RUNNING = ("the broker is starting or has ended",)


class Broker:
    """Construct it, `run` it once, `stop` it."""

    def __init__(
        self, options: BrokerOptions, environment: BrokerEnvironment, metrics: BrokerMetrics
    ) -> None:
        self._options = options
        self._environment = environment
        self._metrics = metrics
        self._stopping = asyncio.Event()
        self._running: RunningBroker | None = None
        self.ready = asyncio.Event()
        """Set when the broker serves, and when it has ended without serving."""

    @property
    def running(self) -> RunningBroker | None:
        """The broker while it serves; None before and after."""
        return self._running

    def faults(self) -> Sequence[str]:
        """The present faults in words, for the health endpoint. Callable from any thread."""
        running = self._running
        return _NOT_RUNNING if running is None else running.health.faults()

    def obstacles(self) -> Sequence[str]:
        """Why the broker cannot serve, in words. Callable from any thread.

        Unlike `faults`, without damage, which may stop single partitions.
        """
        running = self._running
        return _NOT_RUNNING if running is None else running.health.obstacles()

    def stop(self) -> None:
        """End politely: `run` returns when all accepted records are durable."""
        self._stopping.set()

    def reload_certificates(self) -> None:
        """Read the files of keys and certificates again; established connections stay."""
        if self._running is not None:
            self._running.listeners.reload_certificates()

    async def run(self) -> None:
        """Start, serve until stopped, end. Raises any other cause of the incarnation's end."""
        try:
            async with AsyncExitStack() as closing, asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._serve(closing))
                tasks.create_task(self._cancel_start_on_stop(serving))
        except ExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            self._running = None
            self.ready.set()

    async def _cancel_start_on_stop(self, serving: asyncio.Task[None]) -> None:
        """End a start that was stopped: it has acknowledged nothing, so it needs no fence."""
        await self._stopping.wait()
        if self._running is None:
            serving.cancel()

    async def _serve(self, closing: AsyncExitStack) -> None:
        opened = await open_cluster(self._options, self._environment, self._metrics, closing)
        async with asyncio.TaskGroup() as tasks:
            running = await startup(opened, tasks, closing)
            self._running = running
            self.ready.set()
            host, port = running.membership.listening
            logger.info(
                "ready",
                extra={
                    "incarnation": str(running.membership.incarnation),
                    "partitions": len(running.writes.partitions),
                    "address": f"{host}:{port}",
                },
            )
            await self._stopping.wait()
            await shut_down(running)


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the broker; the others are its consequences."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
