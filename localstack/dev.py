"""`tidelog dev`: brokers and their store on this machine, until Ctrl-C.

All processes are children of this one, and end with it. A second Ctrl-C kills them at once.
"""

from __future__ import annotations

import code
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tidelog.cli.log_options import FORMAT, LEVEL
from tidelog.errors import InvalidConfiguration, Refused
from tidelog.extras import imported
from tidelog.localstack.broker_process import STOP_SECONDS_MAX, BrokerProcess
from tidelog.localstack.ports import accepts, free_ports
from tidelog.localstack.s3_servers import (
    S3Server,
    minio_program,
    start_minio,
    start_moto,
    start_seaweedfs,
)

BROKERS_MAX: Final = 9
LOOK_SECONDS: Final = 0.5
MINIO_CACHE: Final = Path.home() / ".cache" / "tidelog"
S3_SERVERS: Final[dict[str, Callable[[Path], S3Server]]] = {
    "minio": lambda folder: start_minio(folder, MINIO_CACHE),
    "seaweedfs": start_seaweedfs,
    "moto": start_moto,
}
STORES: Final = ("memory", "file", *S3_SERVERS)


@click.command()
@click.option("--brokers", type=click.IntRange(1, BROKERS_MAX), default=1, show_default=True)
@click.option(
    "--store",
    "kind",
    type=click.Choice(STORES),
    default=None,
    help="What holds the data.  [default: memory; file with --folder or several brokers]",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Keeps data and logs.  [default: a temporary folder, removed at the end]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535 - BROKERS_MAX),
    default=9092,
    show_default=True,
    help="The first broker's; the others have those after it. 0: any free ones.",
)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting.")
@click.option("--console", is_flag=True, help="A Python prompt with the SDK, until Ctrl-D.")
@click.pass_context
def dev(
    context: click.Context,
    brokers: int,
    kind: str | None,
    folder: Path | None,
    port: int,
    assignments: tuple[str, ...],
    console: bool,
) -> None:
    """Run brokers and their store on this machine, for development, until Ctrl-C.

    Nothing of it is for production: keys are fixed, and a temporary folder goes at the end.
    """
    kind = kind or ("memory" if brokers == 1 and folder is None else "file")
    if kind == "memory" and brokers > 1:
        raise InvalidConfiguration(
            "--store memory lives in one process, so it serves one broker: take --store moto or"
            " file, or --brokers 1"
        )
    ports = _ports(port, brokers)
    chosen = context.params
    arguments = ["--log-level", chosen[LEVEL], "--log-format", chosen[FORMAT]]
    arguments += [word for each in assignments for word in ("--set", each)]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        place = folder or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="tidelog-dev-", ignore_cleanup_errors=True)
            )
        )
        place.mkdir(parents=True, exist_ok=True)
        url = _start_store(kind, place, stack)
        running: list[BrokerProcess] = []
        stack.enter_context(_stopped_at_exit(running))
        for broker_id, listened in enumerate(ports):
            running.append(_start_broker(broker_id, listened, url, place, arguments))
        _print_addresses(running, url, place)
        if console:
            _prompt(running, url)
        else:
            _watch(running)


def _ports(first: int, count: int) -> list[int]:
    if first == 0:
        return free_ports(count)
    ports = list(range(first, first + count))
    for port in ports:
        if accepts(port):
            raise Refused(
                f"port {port} is in use: end the process that listens there, or choose others with"
                " --port"
            )
    return ports


def _start_store(kind: str, folder: Path, stack: contextlib.ExitStack) -> str:
    """The store's URL, with a server for it where it needs one."""
    if kind == "memory":
        return "memory://dev"
    if kind == "file":
        bucket = folder / "bucket"
        bucket.mkdir(exist_ok=True)
        return bucket.absolute().as_uri()
    if kind == "moto":
        imported("moto", "--store moto")
    if kind == "minio":
        minio_program(MINIO_CACHE, click.echo)
    click.echo(f"starting {kind}")
    return stack.enter_context(S3_SERVERS[kind](folder / kind)).url


def _start_broker(
    number: int, port: int, url: str, folder: Path, arguments: Sequence[str]
) -> BrokerProcess:
    return BrokerProcess.start(
        url,
        folder / f"broker-{number}.log",
        listen=f"127.0.0.1:{port}",
        http="127.0.0.1:0",
        broker_id=number,
        arguments=arguments,
    )


@contextlib.contextmanager
def _stopped_at_exit(running: list[BrokerProcess]) -> Iterator[None]:
    """Brokers that run at the end are stopped; all of them get the signal at once.

    If that is interrupted, they are killed.
    """
    with contextlib.ExitStack() as killed:
        try:
            yield
        finally:
            for broker in running:
                killed.enter_context(broker)
            click.echo("ending")
            for broker in running:
                if broker.process.poll() is None:
                    broker.process.terminate()
            for broker in running:
                # Not `stop`: a second signal could meet a broker whose handlers are gone.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    broker.wait_for_death(STOP_SECONDS_MAX)


def _print_addresses(running: list[BrokerProcess], url: str, folder: Path) -> None:
    bootstrap = _bootstrap(running)
    for broker in running:
        click.echo(
            f"broker {broker.broker_id}  kafka {broker.kafka}  metrics http://{broker.http}/metrics"
            f"  process {broker.process.pid}"
        )
    click.echo(f"store      {url}")
    click.echo(f"logs       {folder}/*.log")
    click.echo("connect")
    click.echo(f"  export TIDELOG_BOOTSTRAP={bootstrap}")
    click.echo("  tidelog topics create flights --partitions 4")
    click.echo(f'  python: from tidelog import Producer; Producer("{bootstrap}")')
    click.echo(f"  kcat -b {bootstrap} -L")
    click.echo("ready; Ctrl-C ends all of it")


def _bootstrap(running: list[BrokerProcess]) -> str:
    return ",".join(broker.kafka for broker in running)


def _watch(running: list[BrokerProcess]) -> None:
    """Wait for a signal; tell of brokers that end by themselves."""
    alive = list(running)
    while True:
        time.sleep(LOOK_SECONDS)
        for broker in alive[:]:
            ended = broker.process.poll()
            if ended is not None:
                alive.remove(broker)
                click.echo(
                    f"broker {broker.broker_id} has ended with {ended}; its log is"
                    f" {broker.log_path}",
                    err=True,
                )


def _prompt(running: list[BrokerProcess], url: str) -> None:
    """A Python prompt with the SDK's names, `bootstrap`, `store` and `admin`."""
    import tidelog

    bootstrap = _bootstrap(running)
    names: dict[str, Any] = {name: getattr(tidelog, name) for name in tidelog.__all__}
    names |= {"bootstrap": bootstrap, "store": url, "admin": tidelog.Admin(bootstrap)}
    code.interact(
        f"bootstrap, store, admin, {', '.join(tidelog.__all__)}; Ctrl-D ends all of it",
        local=names,
        exitmsg="",
    )
    sys.stdout.flush()
