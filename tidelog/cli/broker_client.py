"""Access of client commands to a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tidelog.cli.address import Address, shown
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.pool import Client
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork

T = TypeVar("T")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECTING = "connecting"
"""RequestFailed's request before any request."""
HTTP = b"HTTP/"
PROBE_SECONDS = 2.0
ATTEMPTS_MAX = 20
RETRY_SECONDS = 0.5

bootstrap_option = click.option(
    "--bootstrap",
    type=Address(),
    envvar="TIDELOG_BOOTSTRAP",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    help="Any broker's HOST:PORT.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def with_client(bootstrap: tuple[str, int], use: Callable[[Client], Awaitable[T]]) -> T:
    """Run a command's coroutine with a client, and close the client."""

    async def run() -> T:
        try:
            async with new_client(bootstrap) as client:
                return await use(client)
        except RequestFailed as failure:
            if failure.request == CONNECTING:
                failure.add_note(await _remedy(bootstrap))
            raise

    return asyncio.run(run())


async def _remedy(bootstrap: tuple[str, int]) -> str:
    """What to do about a broker that cannot be reached."""
    if await _speaks_http(bootstrap):
        return (
            f"{shown(bootstrap)} is an HTTP port: give the broker's address for Kafka clients,"
            " which `tidelog server` names as kafka= in its ready line"
        )
    return (
        f"does a broker listen on {shown(bootstrap)}? `tidelog dev` starts one for trials;"
        " --bootstrap HOST:PORT or TIDELOG_BOOTSTRAP names another"
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


def new_client(bootstrap: tuple[str, int]) -> Client:
    """A client, to use as a context manager."""
    settings = ClientSettings(client_id="tidelog-cli")
    return Client(SocketNetwork(), SystemClock(), [bootstrap], settings)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry while the coordinator is loading or moving.

    The request must be safe to repeat.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return await ask()
        except RequestRefused as error:
            if not error.retriable or attempt == ATTEMPTS_MAX:
                raise
            await SystemClock().sleep(RETRY_SECONDS)
