"""A client that authenticates by a token and sends any request in any version."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar, cast

from tests.unit.broker.authentication.issuer import bearer
from tidelog.protocol.api import response_type
from tidelog.protocol.codec import decode
from tidelog.protocol.headers import encode_request, response_body_position
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

R = TypeVar("R", bound=Response)
ANSWER_SECONDS_MAX = 60
MECHANISM = "OAUTHBEARER"


class RawClient:
    """A connection of one principal. Requests and answers are in the caller's versions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str, token: str) -> RawClient:
        """Connect and authenticate."""
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        hello = await client.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1)
        assert hello.error_code == 0, hello
        done = await client.ask(SaslAuthenticateRequest(auth_bytes=bearer(token)), 2)
        assert done.error_code == 0, done
        return client

    async def ask(self, request: Request[R], version: int) -> R:
        """The answer to one request."""
        (answer,) = await self.ask_all([(request, version)])
        return answer

    async def ask_all(self, requests: Sequence[tuple[Request[R], int]]) -> list[R]:
        """The answers to requests that are sent without waiting for answers."""
        for number, (request, version) in enumerate(requests):
            self._writer.writelines(encode_request(request, version, number, "table"))
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return [await self._answer(request, version) for request, version in requests]

    async def _answer(self, request: Request[R], version: int) -> R:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = memoryview(await self._reader.readexactly(size))
        kind = response_type(request.API_KEY)
        position = response_body_position(frame, kind, version)
        return cast(R, decode(kind, frame[position:], version))

    async def versions(self) -> dict[int, range]:
        """The versions that the broker advertises, by API key."""
        answer = await self.ask(ApiVersionsRequest(), 0)
        return {
            each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys
        }

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()
