"""The filesystem store: races between processes, foreign files, roots that do not fit."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import multiprocessing
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.stores.filesystem_faults import failing, run, temporary_files
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import (
    RESERVED_DIRECTORY,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    PreconditionFailed,
    StoreMisconfigured,
)
from tidelog.storage.stores import directory as directory_module
from tidelog.storage.stores.directory import Directory, Stamp
from tidelog.storage.stores.files import link_file
from tidelog.storage.stores.filesystem import FilesystemStore

PROCESSES = 8
ROUNDS = 25
INCREMENTS = 6


class StoppedClock(SystemClock):
    """A wall clock that stands still: times alone cannot tell versions apart."""

    def time_ms(self) -> int:
        return 1_700_000_000_000


class NoEntropy(SeededEntropy):
    """Entropy that never changes: only names differ, as files' names must."""

    def uniform(self, low: float, high: float) -> float:
        return low


def race(root: Path, name: int, barrier: Any, wins: Any) -> None:
    async def story(store: FilesystemStore) -> None:
        body = b"%d" % name * 500
        for number in range(ROUNDS):
            barrier.wait()
            try:
                await store.put(f"race/{number}", body, IfAbsent())
            except PreconditionFailed:
                continue
            wins.put((number, name))
        barrier.wait()
        for _ in range(INCREMENTS):
            while True:
                current = await store.get("counter")
                value = b"%d" % (int(bytes(current.data)) + 1)
                try:
                    await store.put("counter", value, IfMatch(current.etag))
                except PreconditionFailed:
                    continue
                break

    try:
        run(root, story)
    except BaseException:
        barrier.abort()
        raise


def test_of_eight_processes_one_creates_and_no_increment_is_lost(tmp_path: Path) -> None:
    run(tmp_path, lambda store: store.put("counter", b"0"))
    context = multiprocessing.get_context("spawn")
    barrier, wins = context.Barrier(PROCESSES), context.Queue()
    racers = [
        context.Process(target=race, args=(tmp_path, name, barrier, wins), daemon=True)
        for name in range(PROCESSES)
    ]
    for racer in racers:
        racer.start()
    won = dict(wins.get(timeout=60) for _ in range(ROUNDS))
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    assert wins.empty(), "more wins than rounds"
    assert len(won) == ROUNDS

    async def check(store: FilesystemStore) -> None:
        for number, name in won.items():
            assert (await store.get(f"race/{number}")).data == b"%d" % name * 500
        counted = int(bytes((await store.get("counter")).data))
        assert counted == PROCESSES * INCREMENTS

    run(tmp_path, check)
    assert temporary_files(tmp_path) == []


def test_a_store_that_is_opened_leaves_another_s_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link_while_another_opens(source: str, target: str) -> None:
        monkeypatch.undo()
        stamp = Stamp("other", SystemClock().time_ms() * 1_000_000)
        Directory(tmp_path).create("second", [b"y"], stamp)
        link_file(source, target)

    # The first link is a trial of the file system, made while the first store opens.
    monkeypatch.setattr(directory_module, "link_file", link_while_another_opens)

    async def story(store: FilesystemStore) -> None:
        await store.put("first", b"x", IfAbsent())
        assert [meta.key async for meta in store.list()] == ["first", "second"]

    run(tmp_path, story)


def test_versions_never_return_even_if_time_stands_still(tmp_path: Path) -> None:
    async def main() -> None:
        store = FilesystemStore(tmp_path, StoppedClock(), NoEntropy(7))
        etags = [await store.put("lease", b"same bytes")]
        for _ in range(100):
            etags.append(await store.put("lease", b"same bytes", IfMatch(etags[-1])))
        assert len(set(etags)) == len(etags)
        for stale in etags[:-1]:
            with pytest.raises(PreconditionFailed):
                await store.put("lease", b"late", IfMatch(stale))
        await store.close()

    asyncio.run(main())


def test_a_held_lock_does_not_block_creates_and_reads(tmp_path: Path) -> None:
    async def story(store: FilesystemStore) -> None:
        first = await store.put("lease", b"1")
        with ExitStack() as held:
            for stripe in (tmp_path / RESERVED_DIRECTORY / "locks").iterdir():
                fcntl.flock(held.enter_context(stripe.open()), fcntl.LOCK_EX)
            waiting = [
                asyncio.create_task(store.put("lease", b"2", IfMatch(first))) for _ in range(4)
            ]
            for number in range(20):
                await store.put(f"log/{number}", b"entry", IfAbsent())
                assert (await store.get("lease")).data == b"1"
            assert not any(task.done() for task in waiting)
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        kinds = Counter(type(outcome) for outcome in outcomes)
        assert kinds == {str: 1, PreconditionFailed: 3}

    run(tmp_path, story)


def test_own_files_are_no_objects(tmp_path: Path) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put(".other/a", b"x")
        await store.put("z", b"x")
        assert [meta.key async for meta in store.list()] == [".other/a", "z"]

    run(tmp_path, story)


def test_the_root_of_a_volume_is_a_store_although_only_root_reads_its_lost_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "lost+found"
    lost.mkdir()
    scandir = os.scandir

    def refused(path: str) -> object:
        if Path(path) == lost:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)

    async def story(store: FilesystemStore) -> None:
        await store.put("z", b"x")
        assert [meta.key async for meta in store.list()] == ["z"]
        with pytest.raises(ValueError, match="reserved"):
            await store.put("lost+found/a", b"x")

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("patched", "replacement", "says"),
    [
        ("os.link", failing(errno.EPERM), "makes no hard links"),
        ("os.utime", lambda *args, **kwargs: None, "does not keep times in nanoseconds"),
    ],
)
def test_an_unsuitable_file_system_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patched: str, replacement: Any, says: str
) -> None:
    monkeypatch.setattr(patched, replacement)

    async def story(store: FilesystemStore) -> None:
        with pytest.raises(StoreMisconfigured, match=says) as caught:
            await store.put("object", b"x")
        assert "ext4" in str(caught.value)

    run(tmp_path, story)
    assert temporary_files(tmp_path) == []


def test_a_file_where_a_directory_is_needed_is_named(tmp_path: Path) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("a", b"x")
        with pytest.raises(StoreMisconfigured, match="a file stands where a directory"):
            await store.put("a/b", b"y")
        await store.put("c/d", b"x")
        for condition in (None, IfAbsent()):
            with pytest.raises(StoreMisconfigured, match="a directory where the object"):
                await store.put("c", b"y", condition)

    run(tmp_path, story)


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_bytes(b"x")

    async def story(store: FilesystemStore) -> None:
        with pytest.raises(StoreMisconfigured, match=f"{root} is a file; a store is a directory"):
            await store.put("a", b"1")

    run(root, story)
    assert root.read_bytes() == b"x"


def test_a_root_that_does_not_exist_reads_as_empty_and_is_made_by_the_first_put(
    tmp_path: Path,
) -> None:
    root = tmp_path / "not" / "yet"

    async def story(store: FilesystemStore) -> None:
        assert [meta async for meta in store.list()] == []
        with pytest.raises(ObjectNotFound):
            await store.get("object")
        await store.delete("object")
        assert not root.exists()
        await store.put("object", b"x")
        assert root.is_dir()

    run(root, story)
