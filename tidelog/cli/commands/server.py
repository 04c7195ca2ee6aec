"""`tidelog server`: runs a broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import signal
import socket
import sys
from pathlib import Path

import click
import uvloop
from prometheus_client.process_collector import ProcessCollector

from tidelog.broker.authentication.tls import watch_files
from tidelog.broker.broker import Broker, first_error
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.network.health import HealthServer
from tidelog.broker.network.http_access import HttpAccess
from tidelog.broker.options import BrokerOptions
from tidelog.broker.settings.listeners import is_wildcard
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.families import StoreCollector
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.broker.telemetry.process_memory import settle_garbage, tune_allocator
from tidelog.cli import worker
from tidelog.cli.address import Address, shown
from tidelog.cli.worker import BACKGROUND_NICENESS
from tidelog.clock import Clock, SystemClock
from tidelog.coordinator.cluster.membership import processes
from tidelog.crash_points import CrashPoints
from tidelog.entropy import SystemEntropy
from tidelog.errors import InvalidConfiguration, Refused
from tidelog.identifiers import BrokerId
from tidelog.network import SocketNetwork
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.metered import StoreStatistics
from tidelog.workers.offload import ThreadOffload
from tidelog.workers.process_offload import ProcessOffload

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a worker thread may hold the interpreter's lock while the event loop waits for it.

With Python's 5 ms every acknowledgement could wait that long during a roll.
"""


@click.command()
@click.option(
    "--store", envvar="TIDELOG_STORE", required=True, help="file:///dir, s3://bucket/prefix."
)
@click.option(
    "--listen",
    type=Address(),
    default=None,
    help="The address for Kafka clients.  [default: 127.0.0.1:9092, or the next free port]",
)
@click.option("--advertise", type=Address(), default=None, help="The address for clients.")
@click.option(
    "--broker-id",
    type=click.IntRange(0, 2**31 - 1),
    default=None,
    help="The broker's id in the cluster.  [default: the lowest free one]",
)
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A TOML file.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting.")
@click.option(
    "--http", type=Address(), default=None, help="The address of /healthz, /readyz and /metrics."
)
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@click.pass_obj
def server(
    crash_points: CrashPoints,
    store: str,
    listen: tuple[str, int] | None,
    advertise: tuple[str, int] | None,
    broker_id: int | None,
    config: Path | None,
    assignments: tuple[str, ...],
    http: tuple[str, int] | None,
    as_json: bool,
) -> None:
    """Run a broker on a store until SIGTERM or SIGINT.

    The first line on stdout is "ready kafka=HOST:PORT http=HOST:PORT|- cluster=ID broker=N"; logs
    go to stderr.
    """
    if advertised := advertise or listen:
        _refuse_wildcard(advertised)
    tune_allocator()
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = load_settings(file=config, flags=assignments)
    options = BrokerOptions(
        settings=settings,
        broker_id=None if broker_id is None else BrokerId(broker_id),
        listen=listen,
        advertise=advertise,
        own_host=socket.getfqdn(),
        process=processes.current(),
        is_running=processes.is_running,
        descriptors_max=_descriptors_max(),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, store, http, as_json, crash_points))


async def _serve(
    options: BrokerOptions,
    store_url: str,
    http: tuple[str, int] | None,
    as_json: bool,
    crash_points: CrashPoints,
) -> None:
    metrics = BrokerMetrics()
    async with contextlib.AsyncExitStack() as closing:
        access = HttpAccess.of(options.settings)
        environment = _environment(store_url, metrics, crash_points, closing)
        broker = Broker(options, environment, metrics)
        health = None
        if http is not None:
            health = _health_server(
                http, access, broker, options.settings, metrics, environment.clock
            )
            closing.callback(health.close)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.stop)

        def reload() -> None:
            broker.reload_certificates()
            if access.tls is not None:
                access.tls.reload(forced=True)

        loop.add_signal_handler(signal.SIGHUP, reload)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_watch(access, options.settings, environment.clock))
                tasks.create_task(_announce(broker, health, as_json))
                await broker.run()
                watching.cancel()
        except ExceptionGroup as errors:
            raise first_error(errors) from None


async def _watch(access: HttpAccess, settings: BrokerSettings, clock: Clock) -> None:
    """Take a certificate of the HTTP server that changes."""
    if access.tls is not None:
        await watch_files([access.tls], clock, settings.integer("ssl.files.check.interval.ms"))


def _environment(
    store_url: str,
    metrics: BrokerMetrics,
    crash_points: CrashPoints,
    closing: contextlib.AsyncExitStack,
) -> BrokerEnvironment:
    """The operating system's. `closing` ends what this begins."""
    clock, entropy = SystemClock(), SystemEntropy()
    statistics = StoreStatistics()
    metrics.registry.register(StoreCollector(statistics))
    ProcessCollector(registry=metrics.registry)
    store = open_store(store_url, clock, entropy, statistics=statistics)
    closing.push_async_callback(store.close)

    def threads(name: str, count: int = 1, niceness: int = 0) -> ThreadOffload:
        offload = ThreadOffload(count, name, niceness)
        closing.callback(offload.close)
        return offload

    offload = threads("tidelog-offload")
    large_batches = threads("tidelog-large-batches")
    background = threads("tidelog-background", 2, BACKGROUND_NICENESS)
    # Log compaction looks keys up among millions in one step.
    cleaning = threads("tidelog-cleaning", 1, BACKGROUND_NICENESS)
    # Rolls do not even share the interpreter's lock: the system may suspend the thread that holds
    # it, and the event loop would wait for it.
    rolling = ProcessOffload(worker.COMMAND, clock)
    closing.push_async_callback(rolling.close)
    return BrokerEnvironment.of(
        store,
        clock,
        entropy,
        SocketNetwork(),
        offload,
        background=background,
        rolling=rolling,
        cleaning=cleaning,
        large_batches=large_batches,
        crash_points=crash_points,
    )


def _refuse_wildcard(advertised: tuple[str, int]) -> None:
    """Raises InvalidConfiguration if clients cannot connect to this address, such as 0.0.0.0."""
    if is_wildcard(advertised[0]):
        raise InvalidConfiguration(
            f"clients cannot connect to {shown(advertised)}: give the address that they reach with"
            " --advertise HOST:PORT"
        )


def _descriptors_max() -> int | None:
    """Raise the process's limit of file descriptors to the maximum, and return it.

    None: no limit.
    """
    granted, grantable = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS grants no unlimited number, and reports that only here.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (grantable, grantable))
        granted = grantable
    return None if granted == resource.RLIM_INFINITY else granted


def _health_server(
    address: tuple[str, int],
    access: HttpAccess,
    broker: Broker,
    settings: BrokerSettings,
    metrics: BrokerMetrics,
    clock: Clock,
) -> HealthServer:
    if missing := access.missing_at(address[0]):
        logger.warning(
            "health and metrics are open to clients beyond this machine, without encryption or"
            " without a token; set what is missing, or listen on 127.0.0.1",
            extra={"http": shown(address), "missing": ", ".join(missing)},
        )
    try:
        return HealthServer(
            *address,
            access=access,
            health=broker.faults,
            readiness=broker.obstacles,
            exposition=metrics.exposition,
            connections_max=settings.integer("http.connections.max"),
            timeout_seconds=settings.integer("http.request.timeout.ms") / 1000,
            clock=clock,
        )
    except OSError as error:
        raise Refused(
            f"cannot listen on {shown(address)}: {error.strerror}; stop the process that listens"
            " there or choose another address with --http"
        ) from error


async def _announce(broker: Broker, health: HealthServer | None, as_json: bool) -> None:
    await broker.ready.wait()
    running = broker.running
    if running is None:
        return
    settle_garbage()
    kafka = shown(running.membership.advertised)
    http = "-" if health is None else shown(health.address)
    member = running.membership
    cluster, number = member.state().cluster_id, member.incarnation.broker_id
    if as_json:
        line = json.dumps({"kafka": kafka, "http": http, "cluster": cluster, "broker": number})
    else:
        line = f"ready kafka={kafka} http={http} cluster={cluster} broker={number}"
    print(line, flush=True)
