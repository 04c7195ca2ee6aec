"""Keys of foreign objects, which lie in Tidelog's folders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from tidelog.bucket.object_keys import StagedObject, parse_key
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.stores.location import open_store
from tidelog.wal.log.adoption import staged_key


@pytest.mark.parametrize("folder", ["handover/", "staged/", "probe/", f"topics/{UUID(int=7)}/"])
@pytest.mark.parametrize("name", ["a\\b", "a\nb", "x" * 256, "a//b"])
def test_a_key_that_no_store_takes_is_not_tidelogs(folder: str, name: str) -> None:
    assert parse_key(folder + name) is None


@pytest.mark.parametrize("topic", ["a\\b", "a\nb", "x" * 256, ".."])
def test_a_snapshot_of_a_topic_that_no_store_takes_is_not_tidelogs(topic: str) -> None:
    assert parse_key(f"state/{topic}/0/{7:020d}.parquet") is None


@pytest.mark.parametrize("folder", ["wal/", "checkpoint/", "merged/", "state/"])
def test_tidelog_writes_numbers_with_the_digits_of_ascii(folder: str) -> None:
    """A foreign object with other digits would count as a newer one of Tidelog's."""
    suffix = {"wal/": ".wal", "checkpoint/": "", "merged/": ".merged", "state/": ".parquet"}[folder]
    owner = "topic/0" if folder == "state/" else "1-2"
    number = f"{7:020d}"
    assert parse_key(f"{folder}{owner}/{number}{suffix}") is not None
    other = number.translate({ord("0") + each: 0x660 + each for each in range(10)})
    assert parse_key(f"{folder}{owner}/{other}{suffix}") is None


@pytest.mark.parametrize("folder", ["handover/", "staged/"])
def test_tidelog_names_images_and_staged_objects_by_ids(folder: str) -> None:
    """The collector deleted an operator's file there when it had the age of a staged object."""
    name = str(UUID(int=0xABCDEF))
    assert parse_key(folder + name) is not None
    for other in ("notes.txt", f"{name}.bak", f"old/{name}", name.upper(), name.replace("-", "")):
        assert parse_key(folder + other) is None


def test_whatever_a_folder_lists_can_be_deleted_or_is_foreign(tmp_path: Path) -> None:
    """Such a file, which an operator had put there, ended the broker that was to delete it."""

    async def story() -> None:
        store = open_store(f"file://{tmp_path}", SystemClock(), SystemEntropy())
        known = staged_key(UUID(int=7))
        await store.put(known, b"")
        (tmp_path / "staged" / "a\\b").write_bytes(b"")
        listed = [meta.key async for meta in store.list("staged/")]
        found = [key for key in listed if isinstance(parse_key(key), StagedObject)]
        assert found == [known]
        await store.delete(*found)
        await store.close()

    asyncio.run(story())
