"""Access of client commands to a broker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from tidelog.cli.address import Addresses, Bootstrap, shown
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.operations import IsolationLevel, list_offsets
from tidelog.client.patience import ClientRetrySettings, Patience
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.references import read_properties

T = TypeVar("T")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECTING = "connecting"
"""RequestFailed's request before any request."""
HTTP = b"HTTP/"
PROBE_SECONDS = 2.0
RETRY_MS_MAX = 10_000

SECURITY = "tidelog.client.security"
"""Where the command's context keeps the client's security."""


def _take_security(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.meta[SECURITY] = security_of(read_properties(path))


_security_option = click.option(
    "--command-config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="TIDELOG_COMMAND_CONFIG",
    expose_value=False,
    callback=_take_security,
    help="A file with the client's security, by confluent-kafka's names.",
)


def _address_option(default: str | None) -> Callable[[Callable[..., T]], Callable[..., T]]:
    return click.option(
        "--bootstrap",
        type=Addresses(),
        envvar="TIDELOG_BOOTSTRAP",
        default=default,
        show_default=True,
        help="Addresses of some brokers, tried in turn.",
    )


def bootstrap_option(command: Callable[..., T]) -> Callable[..., T]:
    """The options that tell how a command reaches a broker."""
    return _address_option(DEFAULT_BOOTSTRAP)(_security_option(command))


def optional_bootstrap_option(command: Callable[..., T]) -> Callable[..., T]:
    """The same for a command that also works without a broker: None if none is named."""
    return _address_option(None)(_security_option(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def with_client(bootstrap: Bootstrap, use: Callable[[Client], Awaitable[T]]) -> T:
    """Run a command's coroutine with a client, and close the client."""

    async def run() -> T:
        _end_at_ctrl_c()
        try:
            async with new_client(bootstrap) as client:
                return await use(client)
        except RequestFailed as failure:
            if failure.request == CONNECTING:
                failure.add_note(await _remedy(bootstrap))
            raise

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _end_at_ctrl_c() -> None:
    """Let each Ctrl-C cancel this task.

    asyncio's own handler does not wake a loop that is about to wait, or whose process gets the
    signal in another thread. A command that waits for a line would not end.
    """
    task = asyncio.current_task()
    is_main = threading.current_thread() is threading.main_thread()
    # A shell starts a command in the background with SIGINT ignored.
    if task is not None and is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)


async def _remedy(bootstrap: Bootstrap) -> str:
    """The remedy for brokers that cannot be reached."""
    of_http = [each for each in bootstrap if await _speaks_http(each)]
    if of_http:
        return (
            f"{shown(*of_http)} is an HTTP port: give the broker's address for Kafka clients,"
            " which `tidelog server` names as kafka= in its ready line"
        )
    return (
        f"does a broker listen on {shown(*bootstrap)}? `tidelog dev` starts one for trials;"
        " --bootstrap HOST:PORT or TIDELOG_BOOTSTRAP names others"
    )


async def _speaks_http(address: tuple[str, int]) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                return (await reader.read(len(HTTP))) == HTTP
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def new_client(bootstrap: Bootstrap) -> Client:
    """A client, to use as a context manager."""
    context = click.get_current_context(silent=True)
    security = None if context is None else context.meta.get(SECURITY)
    settings = ClientSettings(client_id="tidelog-cli", security=security)
    return Client(SocketNetwork(), SystemClock(), bootstrap, settings)


async def with_retries(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry while a coordinator is loading or moving, or a partition has no leader.

    The request must be safe to repeat.
    """
    return await _patience().answer(ask)


def _patience() -> Patience:
    return Patience(SystemClock(), SystemEntropy(), ClientRetrySettings(), RETRY_MS_MAX)


async def offset_at(
    client: Client,
    topic: str,
    partition: int,
    timestamp_ms: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> int:
    """The offset of a timestamp, or of an end. Waits for a partition that moves or has no leader.

    Raises RequestRefused: at once if the partition does not exist; RequestFailed.
    """
    patience = _patience()
    while True:
        try:
            return (await list_offsets(client, topic, partition, timestamp_ms, isolation)).offset
        except RequestRefused as refusal:
            if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not refusal.retriable:
                raise
            await patience.wait(refusal)
        except RequestFailed as failure:
            # A broker that has died leads its partitions until others take over.
            await patience.wait(failure)
