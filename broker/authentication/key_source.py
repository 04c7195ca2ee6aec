"""Where an issuer's key set is read: a file or an HTTP server, within limits of size and time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import h11

from tidelog.errors import InvalidConfiguration, Unreachable
from tidelog.network import Network

SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
HEADER_BYTES_MAX: Final = 16 * 1024
READ_BYTES: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}

ReadKeys = Callable[[], Awaitable[bytes]]
"""Reads the document of a key set. Raises Unreachable."""


@dataclass(frozen=True, slots=True)
class KeyUrl:
    """The address of a key set."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    """The path of a file, or the path and query for an HTTP server. It may hold a secret."""

    def __str__(self) -> str:
        """Without the query, for logs and messages."""
        if self.scheme == "file":
            return f"file://{self.target}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.target.partition('?')[0]}"

    @property
    def is_exposed(self) -> bool:
        """Whether others on the network could replace the keys on their way."""
        if self.scheme != "http":
            return False
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


def parse_key_url(text: str) -> KeyUrl:
    """The address in the setting. Raises InvalidConfiguration."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidConfiguration(f"{SETTING} is not a URL") from None
    if parts.username is not None or parts.fragment:
        raise InvalidConfiguration(f"{SETTING} must have neither a login nor a fragment")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise InvalidConfiguration(f"{SETTING} must name a file as file:///PATH")
        return KeyUrl("file", "", 0, unquote(parts.path))
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidConfiguration(
            f"{SETTING} must begin with https://HOST, http://HOST or file:///"
        )
    if not text.isascii() or any(letter <= " " for letter in text):
        raise InvalidConfiguration(f"{SETTING} has letters that a URL must encode")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return KeyUrl(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], target)


def read_key_file(url: KeyUrl, bytes_max: int) -> bytes:
    """The document in a file. Raises Unreachable."""
    try:
        with Path(url.target).open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise Unreachable(f"it cannot be read: {error.strerror}") from None
    _check_size(len(data), bytes_max)
    return data


def key_reader(url: KeyUrl, network: Network, seconds_max: float, bytes_max: int) -> ReadKeys:
    """Reads the document at the address."""
    if url.scheme == "file":

        async def from_file() -> bytes:
            return read_key_file(url, bytes_max)

        return from_file
    tls = ssl.create_default_context() if url.scheme == "https" else None

    async def from_server() -> bytes:
        try:
            async with asyncio.timeout(seconds_max):
                return await _get(network, url, tls, bytes_max)
        except TimeoutError:
            raise Unreachable(f"no whole answer came within {seconds_max:g} s") from None
        except OSError as error:
            raise Unreachable(f"the connection failed: {error}") from None
        except h11.RemoteProtocolError as error:
            raise Unreachable(f"the answer is not HTTP: {error}") from None

    return from_server


async def _get(network: Network, url: KeyUrl, tls: ssl.SSLContext | None, bytes_max: int) -> bytes:
    reader = asyncio.StreamReader()
    transport = await network.connect(
        lambda: asyncio.StreamReaderProtocol(reader), url.host, url.port, tls=tls
    )
    try:
        machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_BYTES_MAX)
        headers = [
            ("Host", url.host if ":" not in url.host else f"[{url.host}]"),
            ("Accept", "application/json"),
            ("User-Agent", "tidelog"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=url.target, headers=headers)
        transport.write((machine.send(request) or b"") + (machine.send(h11.EndOfMessage()) or b""))
        body = bytearray()
        while True:
            event = machine.next_event()
            if event is h11.NEED_DATA:
                machine.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                if event.status_code != 200:
                    raise Unreachable(f"the server answers with status {event.status_code}")
            elif isinstance(event, h11.Data):
                body += event.data
                _check_size(len(body), bytes_max)
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            elif isinstance(event, h11.ConnectionClosed):
                raise Unreachable("the server closed the connection without an answer")
    finally:
        transport.abort()


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise Unreachable(
            f"it has more than sasl.oauthbearer.jwks.endpoint.response.max.bytes = {bytes_max}"
        )
