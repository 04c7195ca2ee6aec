"""A broker opens a bucket that was written by the first version of each format, and goes on with
it."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import SETTINGS, contents
from tests.unit.broker.one_broker import World, batch, run
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.memory import MemoryStore

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("form", sorted(path.name for path in GOLDEN.iterdir()))
def test_a_golden_bucket_opens_and_goes_on(form: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / form / "contents.json").read_text())
    with zipfile.ZipFile(GOLDEN / form / "bucket.zip") as archive:
        archive.extractall(tmp_path)

    async def story() -> None:
        store = FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1))
        world = World(store, **SETTINGS)
        world.starts = 100
        async with world.broker() as one:
            assert one.broker.health.faults() == []
            assert json.loads(json.dumps(await contents(one))) == expected
            end = expected["plain-0"]["high_watermark"]
            last = batch(b"again", None, producer_id=7, producer_epoch=3, base_sequence=end - 2)
            assert (await one.produce(last, topic="plain")).base_offset == end - 2
            following = batch(b"next", producer_id=7, producer_epoch=3, base_sequence=end)
            assert (await one.produce(following, topic="plain")).base_offset == end

    run(story)


FIRST_RELEASE_ENTRIES, FIRST_RELEASE_READER = 2, 1
"""The newest format of entries of the metadata log that the first release reads, and its reader
version."""


def test_the_first_release_reads_the_version_that_a_new_bucket_needs() -> None:
    store = MemoryStore(SystemClock())

    async def story() -> None:
        async with World(store).broker():
            pass

    run(story)
    first = asyncio.run(read_entry(store, 0))
    assert first["format"] == 1
    assert first["records"][0]["minimum_reader_version"] > FIRST_RELEASE_READER


def test_the_first_release_meets_a_newer_entry_where_a_later_one_has_been(tmp_path: Path) -> None:
    """The bucket that the first release made requires no newer reader. The first entry of a later
    release's broker does: the first release refuses its newer format by name."""
    with zipfile.ZipFile(GOLDEN / "format-1" / "bucket.zip") as archive:
        archive.extractall(tmp_path)
    before = len(list((tmp_path / "cluster" / "log").glob("*.json")))

    async def story() -> None:
        world = World(FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1)))
        world.starts = 100
        async with world.broker():
            pass

    run(story)
    entries = sorted((tmp_path / "cluster" / "log").glob("*.json"))
    assert json.loads(entries[before].read_bytes())["format"] > FIRST_RELEASE_ENTRIES


async def read_entry(store: MemoryStore, number: int) -> dict[str, Any]:
    data = (await store.get(f"cluster/log/{number:020d}.json")).data
    found: dict[str, Any] = json.loads(bytes(data))
    return found
