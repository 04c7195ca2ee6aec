"""Connections that never authenticate."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import cycle
from typing import Final

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, request_bytes, side_by_side
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

CONNECTIONS: Final = 5000
OPENED_AT_ONCE: Final = 100
"""More connections would overflow the system's queue of connections that the broker has yet to
accept."""
STEPS: Final = ("silent", "versions", "handshake", "scram", "half a frame", "large frame")
"""Steps at which a connection falls silent."""
STAYING: Final = CONNECTIONS - CONNECTIONS // len(STEPS)
"""Connections that stay: the broker closes one at once whose frame is too large."""


@attack(
    seconds=30,
    sasl=True,
    descriptors_max=8192,
    settings={"authentication.timeout.ms": 60_000},
)
async def connections_that_do_not_authenticate(target: Target) -> None:
    """5,000 connections at a listener with SASL stop at any step before they have authenticated:
    silent, after ApiVersions, after SaslHandshake, amid SCRAM, in a frame; they reconnect when
    they are closed."""
    steps = cycle(STEPS)
    chosen = [next(steps) for _ in range(CONNECTIONS)]
    crowd = _Crowd()
    try:
        await side_by_side(
            CONNECTIONS,
            lambda number: again_and_again(lambda: _stop_at(target, chosen[number], crowd), 5.0),
        )
    finally:
        # The attacker's process fails here, since otherwise the attack would prove nothing.
        assert crowd.most > 0.9 * STAYING, f"at most {crowd.most} connections were open at once"


class _Crowd:
    """The connections that are open."""

    def __init__(self) -> None:
        self.opening = asyncio.Semaphore(OPENED_AT_ONCE)
        self.open = 0
        self.most = 0

    def came(self) -> None:
        self.open += 1
        self.most = max(self.most, self.open)


async def _stop_at(target: Target, step: str, crowd: _Crowd) -> None:
    assert target.sasl is not None
    async with crowd.opening:
        wire = await Wire.connect(target.sasl)
    crowd.came()
    try:
        if step == "versions":
            await wire.ask(request_bytes(ApiVersionsRequest(), 2))
        elif step == "half a frame":
            await wire.send((1000).to_bytes(4, "big") + b"\0" * 500)
        elif step == "large frame":
            await wire.send((2**31 - 1).to_bytes(4, "big") + b"\0" * 60_000)
        elif step in ("handshake", "scram"):
            await wire.ask(request_bytes(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1))
            if step == "scram":
                first = SaslAuthenticateRequest(auth_bytes=b"n,,n=nobody,r=" + b"x" * 24)
                await wire.ask(request_bytes(first, 1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await wire.receive()
    finally:
        crowd.open -= 1
        wire.close()
