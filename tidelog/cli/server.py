"""`tidelog server`: run a broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import signal
import sys
from pathlib import Path

import click
import uvloop

from tidelog.broker.broker import Broker
from tidelog.broker.network.health import HealthServer
from tidelog.broker.read.layer_metrics import StoreCollector
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.log_format import configure_logging
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.broker.telemetry.process_memory import settle_garbage, tune_allocator
from tidelog.cli import worker
from tidelog.cli.address import Address, shown
from tidelog.cli.worker import BACKGROUND_NICENESS
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership import processes
from tidelog.crash_points import CrashPoints
from tidelog.entropy import SystemEntropy
from tidelog.errors import Refused
from tidelog.identifiers import BrokerId
from tidelog.network import SocketNetwork
from tidelog.offload import ThreadOffload
from tidelog.process_offload import ProcessOffload
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.metered import StoreStatistics

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a worker thread may keep the event loop from going on, where it does not let go by
itself. With Python's 5 ms every acknowledgement may wait that long while something is rolled."""


@click.command()
@click.option(
    "--store", envvar="TIDELOG_STORE", required=True, help="file:///dir, s3://bucket/prefix."
)
@click.option("--listen", type=Address(), default="127.0.0.1:9092", show_default=True)
@click.option("--advertise", type=Address(), default=None, help="What clients are told.")
@click.option("--broker-id", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting.")
@click.option("--http", type=Address(), default=None, help="Where /healthz and /metrics are.")
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@click.pass_obj
def server(
    crash_points: CrashPoints,
    store: str,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    broker_id: int,
    config: Path | None,
    assignments: tuple[str, ...],
    http: tuple[str, int] | None,
    as_json: bool,
) -> None:
    """Run a broker on a store until SIGTERM or SIGINT.

    The first line on stdout is "ready kafka=HOST:PORT http=HOST:PORT|- cluster=ID broker=N"; logs
    go to stderr.
    """
    tune_allocator()
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = load_settings(file=config, flags=assignments)
    configure_logging(sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            _serve(
                store,
                listen,
                advertise,
                BrokerId(broker_id),
                settings,
                http,
                as_json,
                crash_points,
            )
        )


async def _serve(
    store_url: str,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    broker_id: BrokerId,
    settings: BrokerSettings,
    http: tuple[str, int] | None,
    as_json: bool,
    crash_points: CrashPoints,
) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    metrics = BrokerMetrics()
    statistics = StoreStatistics()
    metrics.registry.register(StoreCollector(statistics))
    async with contextlib.AsyncExitStack() as closing:
        store = open_store(store_url, clock, entropy, statistics=statistics)
        closing.push_async_callback(store.close)
        offload = ThreadOffload()
        closing.callback(offload.close)
        large_batches = ThreadOffload(1, name="tidelog-large-batches")
        closing.callback(large_batches.close)
        background = ThreadOffload(2, name="tidelog-background", niceness=BACKGROUND_NICENESS)
        closing.callback(background.close)
        # Log compaction looks keys up among millions in one step.
        cleaning = ThreadOffload(1, name="tidelog-cleaning", niceness=BACKGROUND_NICENESS)
        closing.callback(cleaning.close)
        # Not even the interpreter's lock is shared with rolls: whoever has it may be held up by the
        # system, and the event loop with it.
        rolling = ProcessOffload(worker.COMMAND, clock)
        closing.push_async_callback(rolling.close)
        broker = Broker(
            settings,
            broker_id=broker_id,
            listen=listen,
            advertise=advertise,
            store=store,
            clock=clock,
            entropy=entropy,
            offload=offload,
            network=SocketNetwork(),
            metrics=metrics,
            process=processes.current(),
            is_running=processes.is_running,
            background=background,
            rolling=rolling,
            cleaning=cleaning,
            large_batches=large_batches,
            crash_points=crash_points,
            descriptors_max=_descriptors_max(),
        )
        health = None if http is None else _health_server(http, broker, metrics)
        if health is not None:
            closing.callback(health.close)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.stop)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(broker.run())
                tasks.create_task(_announce(broker, health, as_json))
        except ExceptionGroup as errors:
            raise _first(errors) from None


def _descriptors_max() -> int | None:
    """How many file descriptors the process may have from now on: all that the system grants it.
    None: any number."""
    granted, grantable = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS grants no unlimited number, and says so only here.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (grantable, grantable))
        granted = grantable
    return None if granted == resource.RLIM_INFINITY else granted


def _health_server(
    address: tuple[str, int], broker: Broker, metrics: BrokerMetrics
) -> HealthServer:
    try:
        return HealthServer(
            *address,
            health=broker.faults,
            exposition=metrics.exposition,
            connections_max=broker.settings.integer("http.connections.max"),
            timeout_seconds=broker.settings.integer("http.request.timeout.ms") / 1000,
            clock=broker.clock,
        )
    except OSError as error:
        raise Refused(
            f"cannot listen on {shown(address)}: {error.strerror}; stop what listens there or"
            " choose another address with --http"
        ) from error


async def _announce(broker: Broker, health: HealthServer | None, as_json: bool) -> None:
    await broker.ready.wait()
    if not broker.is_ready:
        return
    settle_garbage()
    kafka = shown(broker.advertised)
    http = "-" if health is None else shown(health.address)
    cluster, number = broker.cluster_id, broker.incarnation.broker_id
    if as_json:
        line = json.dumps({"kafka": kafka, "http": http, "cluster": cluster, "broker": number})
    else:
        line = f"ready kafka={kafka} http={http} cluster={cluster} broker={number}"
    print(line, flush=True)


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """The error that ended the broker; the others are its consequences."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
