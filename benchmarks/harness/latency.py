"""Latency of an acknowledgement, against a bare PUT to the same store in the same run."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from benchmarks.harness.load import percentile
from benchmarks.harness.targets import Target
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.object_store import IfAbsent
from tidelog.storage.stores.location import open_store

RECORD_BYTES = 1024
OBJECT_BYTES = 1600
"""The approximate size of a WAL object with one such record."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in milliseconds."""

    p50_ms: float
    p99_ms: float


def of_puts(store_url: str, count: int, warmup: int = 20) -> Latency:
    """Create objects one after the other with the broker's client library."""

    async def run() -> list[float]:
        store = open_store(store_url, SystemClock(), SystemEntropy())
        body = os.urandom(OBJECT_BYTES)
        took = []
        try:
            for number in range(count + warmup):
                started = time.perf_counter()
                await store.put(f"bench/{os.getpid()}-{number}", body, IfAbsent())
                took.append(1000 * (time.perf_counter() - started))
        finally:
            await store.close()
        return sorted(took[warmup:])

    values = asyncio.run(run())
    return Latency(percentile(values, 0.5), percentile(values, 0.99))


def of_acknowledgements(target: Target, topic: str, count: int, seconds: float = 0) -> Latency:
    """Produce one record after the other: at least so many, and for so long."""
    target.create_topic(topic, 1)
    found = target.load("latency", topic, records=count, seconds=seconds, record_bytes=RECORD_BYTES)
    return Latency(found["p50_ms"], found["p99_ms"])
