"""Checks of a store: whether it answers, its rights, its promises, its speed and its clock.

Nothing stays in the store. Objects are written only below `probe/`, where brokers delete what a
process that died has left. In the other folders each right is shown by a request that changes
nothing: a store judges the right before it looks for the object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.prefix import DATA_FOLDERS, PROBE_FOLDER
from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX
from tidelog.doctor.findings import Finding, Grade, failed, ok, warning
from tidelog.entropy import Entropy
from tidelog.storage.object_store import (
    AccessDenied,
    IfMatch,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreError,
    StoreNotApplied,
    StoreOutcomeUnknown,
)
from tidelog.storage.stores.probe import probe

FOLDERS: Final = (*DATA_FOLDERS, CREDENTIALS_PREFIX, PROBE_FOLDER)
SAMPLES: Final = 30
SAMPLE_BYTES: Final = 4096
SLOW_PUT_MS: Final = 500
CLOCK_MS_MAX: Final = 5_000
_ROUNDED_MS: Final = 1_000
"""Stores tell an object's time in whole seconds."""
_NO_VERSION: Final = IfMatch("0" * 32)
_RIGHTS_REMEDY: Final = "give the credentials what `tidelog bucket policy URL --role broker` prints"
_REACH_REMEDY: Final = "check the address, the network, and whether the store runs"


async def store_findings(store: ObjectStore, clock: Clock, entropy: Entropy) -> list[Finding]:
    """All checks of a store; only the first one if the store does not answer."""
    reached = await _reached(store)
    if reached.verdict is Grade.FAILED:
        return [reached]
    findings = [
        reached,
        await _rights(store, entropy),
        await _check_conditional_writes(store, entropy),
    ]
    try:
        times = await _measured(store, clock, entropy)
    except StoreError as error:
        return [*findings, failed("latency", f"not measured: {error}")]
    return [*findings, _latency(times), _clock_difference(times)]


async def _reached(store: ObjectStore) -> Finding:
    try:
        async for _ in store.list(PROBE_FOLDER):
            break
    except AccessDenied:
        # It answers. The check of the rights names the missing one.
        pass
    except StoreError as error:
        passing = isinstance(error, StoreNotApplied | StoreOutcomeUnknown)
        return failed("store", f"{store.url}: {error.why}", _REACH_REMEDY if passing else "")
    return ok("store", f"{store.url} answers")


async def _rights(store: ObjectStore, entropy: Entropy) -> Finding:
    """The rights below each folder of a cluster."""
    refused: dict[str, list[str]] = {}
    why = ""
    for folder in FOLDERS:
        for right, request in _harmless(store, f"{folder}doctor-{entropy.uuid().hex}", folder):
            try:
                await request()
            except AccessDenied as denied:
                refused.setdefault(right, []).append(folder)
                why = why or denied.why
            except (ObjectNotFound, PreconditionFailed):
                pass
            except StoreError as error:
                return failed("rights", f"{right} below {folder}: {error.why}")
    if refused:
        words = "; ".join(f"{right} below {', '.join(at)}" for right, at in refused.items())
        return failed("rights", f"the store refuses {words} ({why})", _RIGHTS_REMEDY)
    return ok("rights", "list, get, put and delete below each folder of a cluster")


def _harmless(
    store: ObjectStore, key: str, folder: str
) -> Iterator[tuple[str, Callable[[], Awaitable[object]]]]:
    """Requests for an absent object, which change nothing."""

    async def first() -> None:
        async for _ in store.list(folder):
            return

    async def put() -> None:
        await store.put(key, b"", _NO_VERSION)
        # The store ignores conditions, which another check reports.
        await store.delete(key)

    yield "list", first
    yield "get", lambda: store.get(key)
    yield "put", put
    yield "delete", lambda: store.delete(key)


async def _check_conditional_writes(store: ObjectStore, entropy: Entropy) -> Finding:
    """The probe that a broker runs at its start."""
    try:
        await probe(store, entropy)
    except StoreError as error:
        return failed("conditional writes", error.why)
    return ok(
        "conditional writes", "put-if-absent, put-if-match, reads and listings after writes hold"
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """Latencies in ms; the store's time of the last put, and the machine's around it."""

    put_ms: list[float]
    get_ms: list[float]
    stored_ms: int
    before_ms: int
    after_ms: int


async def _measured(store: ObjectStore, clock: Clock, entropy: Entropy) -> _Times:
    key = f"{PROBE_FOLDER}{entropy.uuid().hex}"
    data = bytes(SAMPLE_BYTES)
    put_ms, get_ms = [], []
    before_ms = after_ms = 0
    try:
        for _ in range(SAMPLES):
            started, before_ms = clock.monotonic(), clock.time_ms()
            await store.put(key, data)
            stored, after_ms = clock.monotonic(), clock.time_ms()
            await store.get(key)
            put_ms.append((stored - started) * 1000)
            get_ms.append((clock.monotonic() - stored) * 1000)
        stored_ms = (await store.head(key)).modified_ms
    finally:
        with suppress(StoreError):
            await store.delete(key)
    return _Times(put_ms, get_ms, stored_ms, before_ms, after_ms)


def _latency(times: _Times) -> Finding:
    words = []
    for name, values in (("PUT", times.put_ms), ("GET", times.get_ms)):
        median, high = np.percentile(values, [50, 99])
        words.append(f"{name} p50 {median:.1f} ms, p99 {high:.1f} ms")
    found = f"{'; '.join(words)} (of {SAMPLES}, {SAMPLE_BYTES} bytes each)"
    if np.median(times.put_ms) > SLOW_PUT_MS:
        remedy = "an acknowledgement takes a PUT: run brokers in the store's region"
        return warning("latency", found, remedy)
    return ok("latency", found)


def _clock_difference(times: _Times) -> Finding:
    earliest = times.before_ms - _ROUNDED_MS - times.stored_ms
    latest = times.stored_ms - _ROUNDED_MS - times.after_ms
    ahead_ms = max(earliest, 0) or -max(latest, 0)
    if abs(ahead_ms) <= CLOCK_MS_MAX:
        return ok("clock", f"within {(abs(ahead_ms) + _ROUNDED_MS) / 1000:.0f} s of the store's")
    side = "ahead of" if ahead_ms > 0 else "behind"
    return warning(
        "clock",
        f"{abs(ahead_ms) / 1000:.0f} s {side} the store's",
        "synchronise this machine's clock (NTP): timestamps and retention by time are as wrong, and"
        " S3 refuses requests beyond 15 minutes",
    )
