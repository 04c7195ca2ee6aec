"""A liveness probe: asks /healthz again and again, as an orchestrator does."""

from __future__ import annotations

import asyncio
import http.client
import json
from dataclasses import dataclass, field

PERIOD_SECONDS = 0.25
TIMEOUT_SECONDS = 1.0
"""Kubernetes' default for probes."""


@dataclass(slots=True)
class Told:
    """The answers of /healthz over some time."""

    probes: int = 0
    unanswered: int = 0
    problems: dict[str, None] = field(default_factory=dict)
    """The different problems, in the order of their first appearance."""


async def watch(address: tuple[str, int], told: Told, stopping: asyncio.Event) -> None:
    """Probe until `stopping` is set."""
    while not stopping.is_set():
        told.probes += 1
        try:
            told.problems |= dict.fromkeys(await asyncio.to_thread(_problems, address))
        except (OSError, http.client.HTTPException):
            told.unanswered += 1
        await asyncio.sleep(PERIOD_SECONDS)


def _problems(address: tuple[str, int]) -> list[str]:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        document = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return [str(problem) for problem in document["problems"]]
