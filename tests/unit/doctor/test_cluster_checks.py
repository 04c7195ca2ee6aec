"""The checks of a bucket's format and of a broker that answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.coordinator.cluster.samples import CLUSTER, WRITER, registered
from tests.unit.coordinator.cluster.world import entry_key
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    FIRST_LEVEL,
    LevelRaised,
    MetadataEntry,
    Record,
    encode_entry,
)
from tidelog.doctor.cluster_checks import bucket_finding
from tidelog.doctor.findings import Finding, Grade
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import Epoch
from tidelog.storage.stores.faulty import FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore


def holding(*entries: bytes) -> MemoryStore:
    store = MemoryStore(SystemClock(), "memory://bucket")

    async def place() -> None:
        for number, data in enumerate(entries):
            await store.put(entry_key(number), data)

    asyncio.run(place())
    return store


def entry(*records: Record, number: int = 0, author: Epoch | None = None) -> bytes:
    return encode_entry(MetadataEntry(number, WRITER, 0, author, records))


def checked(store: MemoryStore | FaultyStore) -> tuple[Finding, str | None]:
    return asyncio.run(bucket_finding(store, SystemClock()))


def test_a_bucket_tells_its_format_and_level_and_the_releases_format_and_level() -> None:
    store = MemoryStore(SystemClock(), "memory://bucket")

    async def create() -> str:
        log = await MetadataLog.open(store, SystemClock(), SeededEntropy(1), create=True)
        await log.close()
        return log.state.cluster_id

    cluster_id = asyncio.run(create())
    finding, found_id = checked(store)
    assert finding.verdict is Grade.OK
    assert found_id == cluster_id
    level = f"level {FIRST_LEVEL}, brokers none; this release: format 2, version {BROKER_VERSION}"
    assert finding.found == f"cluster {cluster_id}, format 2, {level}"


def test_an_empty_store_is_a_warning() -> None:
    finding, _ = checked(holding())
    assert finding.verdict is Grade.WARNING
    assert "holds no cluster" in finding.found


@pytest.mark.parametrize(
    ("newer", "words"),
    [
        ({"minimum_reader_version": 9}, "asks for a reader of version 9"),
        ({"minimum_writer_version": 9}, "asks for a writer of version 9"),
    ],
)
def test_a_newer_format_fails(newer: dict[str, int], words: str) -> None:
    finding, _ = checked(holding(entry(replace(CLUSTER, **newer))))
    assert finding.verdict is Grade.FAILED
    assert words in finding.found
    assert "use a newer Tidelog" in finding.found


def test_a_level_above_this_release_fails() -> None:
    newer = replace(registered(1), version=BROKER_VERSION + 1)
    raised = entry(LevelRaised(BROKER_VERSION + 1), number=2, author=Epoch(1))
    finding, _ = checked(holding(entry(CLUSTER), entry(newer, number=1), raised))
    assert finding.verdict is Grade.FAILED
    assert f"level {BROKER_VERSION + 1}" in finding.found
    assert "install the release" in finding.remedy


def test_a_damaged_log_fails_and_names_fsck() -> None:
    finding, _ = checked(holding(b"not an entry"))
    assert finding.verdict is Grade.FAILED
    assert "tidelog fsck" in finding.remedy


def test_a_log_that_cannot_be_read_fails() -> None:
    faulty = FaultyStore(holding(entry(CLUSTER)), SystemClock(), SeededEntropy(1))
    faulty.plan("list", *[StoreFault.REFUSED] * 3)
    finding, _ = checked(faulty)
    assert finding.verdict is Grade.FAILED
    assert "cannot be read" in finding.found
