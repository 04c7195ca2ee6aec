"""A key set in a file or on a server. The server may be away, slow, huge, or no HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.loopback import run
from tidelog.broker.authentication.key_source import key_reader, parse_key_url
from tidelog.errors import InvalidConfiguration, Unreachable
from tidelog.network import SocketNetwork

LOOPS = ("uvloop", "asyncio")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nkeys"


def answering(*parts: bytes) -> Serve:
    """A server that answers each request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
        await writer.drain()
        writer.close()

    return serve


@asynccontextmanager
async def server(serve: Serve, tls: object = None) -> AsyncIterator[int]:
    """The server's port."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    listening = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


async def read(url: str, seconds_max: float = 20, bytes_max: int = 1000) -> bytes:
    return await key_reader(parse_key_url(url), SocketNetwork(), seconds_max, bytes_max)()


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_is_read_whole_or_in_chunks(loop: str) -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nke\r\n2\r\nys\r\n0\r\n\r\n"
    )
    old = b"HTTP/1.0 200 OK\r\n\r\nkeys"

    async def story() -> None:
        for answer in (OK, chunked, old):
            async with server(answering(answer)) as port:
                assert await read(f"http://127.0.0.1:{port}/jwks?client=a") == b"keys"

    run(story(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_of_https_proves_its_name(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl

    authority = Authority.create(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.trusted))

    def served(host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue(f"issuer of {host}", host=host))
        return context

    async def story() -> None:
        async with server(answering(OK), served("127.0.0.1")) as port:
            assert await read(f"https://127.0.0.1:{port}/jwks") == b"keys"
        async with server(answering(OK), served("127.0.0.2")) as port:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await read(f"https://127.0.0.1:{port}/jwks")

    run(story(), loop)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n", "302"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "status 503"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nkeys", "not HTTP"),
        (b"", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000, "more than sasl"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5_000_000, "response.max.bytes = 1000"),
    ],
)
def test_other_answers_are_refused(answer: bytes, why: str) -> None:
    async def story() -> None:
        async with server(answering(answer)) as port:
            with pytest.raises(Unreachable, match=why):
                await read(f"http://127.0.0.1:{port}/jwks")

    run(story())


def test_a_server_that_drips_or_is_silent_has_a_deadline_for_the_whole_answer() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.001)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def story() -> None:
        for serve in (drip, silent):
            async with server(serve) as port:
                with pytest.raises(Unreachable, match=r"no whole answer came within 0.05 s"):
                    await read(f"http://127.0.0.1:{port}/jwks", seconds_max=0.05)

    run(story())


def test_a_server_that_is_away_is_unreachable() -> None:
    async def story() -> None:
        async with server(answering(OK)) as port:
            pass
        with pytest.raises(Unreachable, match="the connection failed"):
            await read(f"http://127.0.0.1:{port}/jwks")

    run(story())


def test_a_file_is_read_within_the_limit(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "key set.json"
        url = f"file://{tmp_path}/key%20set.json"
        with pytest.raises(Unreachable, match="cannot be read: No such file"):
            await read(url)
        path.write_bytes(b"keys")
        assert await read(url) == b"keys"
        path.write_bytes(b"x" * 1001)
        with pytest.raises(Unreachable, match="more than"):
            await read(url)

    run(story())


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/jwks", "must begin with https://HOST"),
        ("/etc/jwks", "must begin with https://HOST"),
        ("https://", "must begin with https://HOST"),
        ("https://host:99999/", "is not a URL"),
        ("https://user:hidden@host/", "neither a login"),
        ("https://host/#hidden", "nor a fragment"),
        ("https://host/a b", "letters that a URL must encode"),
        ("file://elsewhere/jwks", "file:///PATH"),
    ],
)
def test_an_address_that_is_none_is_refused_by_name(url: str, why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        parse_key_url(url)
    assert str(refused.value).startswith("sasl.oauthbearer.jwks.endpoint.url")
    assert "hidden" not in str(refused.value)


def test_an_address_is_shown_without_its_query() -> None:
    url = parse_key_url("http://[::1]:8080/jwks?key=hidden")
    assert str(url) == "http://[::1]:8080/jwks"
    assert "hidden" not in repr(url)
    assert not url.is_exposed
    assert parse_key_url("http://issuer.example/jwks").is_exposed
    assert not parse_key_url("https://issuer.example/jwks").is_exposed
