"""Access of client commands to a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tidelog.cli.address import Address
from tidelog.client.errors import RequestRefused
from tidelog.client.pool import Client
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork

T = TypeVar("T")
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
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
        async with new_client(bootstrap) as client:
            return await use(client)

    return asyncio.run(run())


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
