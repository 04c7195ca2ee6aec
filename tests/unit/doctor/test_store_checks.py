"""The checks of a store, on stores that lack a right, break a promise, are slow or are away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.storage.stores.test_probe import AppendOnly, IgnoresConditions, left_behind
from tidelog.clock import SystemClock
from tidelog.doctor.findings import Finding, Grade
from tidelog.doctor.store_checks import SAMPLES, store_findings
from tidelog.entropy import SeededEntropy
from tidelog.localstack.s3_servers import S3Server
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectStore,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.stores.faulty import FaultyStore, StoreFault
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import StoreRetrySettings

CHECKS = ["store", "rights", "conditional writes", "latency", "clock"]
Data = Buffer | Sequence[Buffer]


class SteppingClock(SystemClock):
    """A clock on which each look takes a second, and which is `ahead_ms` ahead of the true time."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self._now = 0.0
        self._ahead_ms = ahead_ms

    def monotonic(self) -> float:
        self._now += 1
        return self._now

    def time_ms(self) -> int:
        return super().time_ms() + self._ahead_ms


def checked(store: ObjectStore, clock: SystemClock | None = None) -> dict[str, Finding]:
    found = asyncio.run(store_findings(store, clock or SystemClock(), SeededEntropy(1)))
    return {each.check: each for each in found}


def memory() -> MemoryStore:
    return MemoryStore(SystemClock(), "memory://checked")


def test_good_stores_pass_and_keep_nothing(tmp_path: Path, moto: S3Server) -> None:
    for url in (f"file://{tmp_path}", "memory://doctor", moto.url_of(moto.bucket, "doctor")):
        store = open_store(url, SystemClock(), SeededEntropy(1))
        found = checked(store)
        assert list(found) == CHECKS
        assert {each.verdict for each in found.values()} == {Grade.OK}, found
        assert left_behind(store) == []
        assert f"of {SAMPLES}" in found["latency"].found


def test_a_missing_right_is_named_with_its_folders() -> None:
    found = checked(AppendOnly(SystemClock(), "memory://append-only"))
    assert found["rights"].verdict is Grade.FAILED
    assert "refuses delete below cluster/, wal/, checkpoint/" in found["rights"].found
    assert "put below" not in found["rights"].found
    assert "tidelog bucket policy URL --role broker" in found["rights"].remedy
    assert found["conditional writes"].verdict is Grade.FAILED


def test_a_right_that_one_folder_lacks_is_found_and_nothing_is_written_there() -> None:
    class NoTables(MemoryStore):
        async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
            if key.startswith("topics/"):
                raise AccessDenied(key, "put is refused (403)")
            return await super().put(key, data, condition)

    store = NoTables(SystemClock(), "memory://no-tables")
    found = checked(store)
    assert found["rights"].found == "the store refuses put below topics/ (put is refused (403))"
    assert found["conditional writes"].verdict is Grade.OK
    assert left_behind(store) == []


def test_a_store_that_ignores_conditions_fails_and_keeps_nothing() -> None:
    store = IgnoresConditions(SystemClock(), "memory://ignoring")
    found = checked(store)
    assert found["conditional writes"].verdict is Grade.FAILED
    assert "the store breaks put-if-absent" in found["conditional writes"].found
    assert left_behind(store) == []


def test_a_missing_bucket_is_named_first_and_nothing_else_is_checked(moto: S3Server) -> None:
    store = open_store(
        moto.url_of("no-such-bucket"),
        SystemClock(),
        SeededEntropy(1),
        retry=StoreRetrySettings(deadline_ms=0),
    )
    found = checked(store)
    assert list(found) == ["store"]
    assert found["store"].verdict is Grade.FAILED
    assert "bucket no-such-bucket does not exist; create it with" in found["store"].found


def test_a_store_that_cannot_be_reached_has_a_remedy() -> None:
    faulty = FaultyStore(memory(), SystemClock(), SeededEntropy(1))
    faulty.plan("list", StoreFault.REFUSED)
    found = checked(faulty)
    assert list(found) == ["store"]
    assert "check the address" in found["store"].remedy


def test_a_fault_while_latency_is_measured_is_told_and_leaves_nothing() -> None:
    class Tires(MemoryStore):
        reads = 0

        async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
            self.reads += 1
            if self.reads > SAMPLES:
                raise StoreNotApplied(key, "tired")
            return await super().get(key, byte_range)

    store = Tires(SystemClock(), "memory://tired")
    found = checked(store)
    assert found["latency"].verdict is Grade.FAILED
    assert "tired" in found["latency"].found
    assert left_behind(store) == []


def test_a_slow_store_is_a_warning() -> None:
    found = checked(memory(), SteppingClock())
    assert found["latency"].verdict is Grade.WARNING
    assert "PUT p50 1000.0 ms, p99 1000.0 ms" in found["latency"].found
    assert "region" in found["latency"].remedy


@pytest.mark.parametrize(("ahead_ms", "words"), [(60_000, "ahead of"), (-60_000, "behind")])
def test_a_clock_that_differs_from_the_store_s_is_a_warning(ahead_ms: int, words: str) -> None:
    found = checked(memory(), SteppingClock(ahead_ms))["clock"]
    assert found.verdict is Grade.WARNING
    assert found.found == f"59 s {words} the store's"
    assert "NTP" in found.remedy


def test_the_store_s_rounding_of_times_is_no_difference() -> None:
    class WholeSeconds(MemoryStore):
        async def head(self, key: str) -> ObjectMeta:
            meta = await super().head(key)
            rounded = meta.modified_ms // 1000 * 1000
            return ObjectMeta(meta.key, meta.size, meta.etag, rounded)

    found = checked(WholeSeconds(SystemClock(), "memory://rounding"))["clock"]
    assert found.found == "within 1 s of the store's"
