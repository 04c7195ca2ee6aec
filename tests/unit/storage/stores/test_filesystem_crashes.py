"""The filesystem store through kill -9: objects are whole, synced, and leave no files behind."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.stores.filesystem_faults import run, temporary_files
from tidelog.clock import SystemClock
from tidelog.storage.object_store import (
    RESERVED_DIRECTORY,
    IfAbsent,
    ObjectNotFound,
    PreconditionFailed,
    StoreNotApplied,
)
from tidelog.storage.stores import directory as directory_module
from tidelog.storage.stores.directory import LEFTOVER_AGE_SECONDS
from tidelog.storage.stores.files import link_file
from tidelog.storage.stores.filesystem import FilesystemStore

WRITER = """
import asyncio, hashlib, sys
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.stores.files import link_file
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.object_store import IfAbsent

async def main():
    store = FilesystemStore(sys.argv[1], SystemClock(), SystemEntropy())
    async def writer(name):
        for number in range(10**6):
            body = (b"%d %d " % (name, number)) * 3000
            key = f"wal/{name}/{number}"
            await store.put(key, hashlib.sha256(body).digest() + body, IfAbsent())
            sys.stdout.write(key + "\\n")
            sys.stdout.flush()
    await asyncio.gather(*(writer(name) for name in range(4)))
asyncio.run(main())
"""


def test_after_kill_9_every_object_is_whole_and_every_acknowledged_one_is_there(
    tmp_path: Path,
) -> None:
    acknowledged: list[str] = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(60)]
            writer.send_signal(signal.SIGKILL)
            acknowledged += writer.stdout.read().split()
        (tmp_path / "wal").rename(tmp_path / f"wal-{writer.pid}")
        acknowledged = [key.replace("wal/", f"wal-{writer.pid}/", 1) for key in acknowledged]

    async def check(store: FilesystemStore) -> set[str]:
        found = set()
        async for meta in store.list():
            data = bytes((await store.get(meta.key)).data)
            assert hashlib.sha256(data[32:]).digest() == data[:32], f"{meta.key} is torn"
            found.add(meta.key)
        return found

    assert set(acknowledged) <= run(tmp_path, check)


def test_old_temporary_files_are_swept_and_young_ones_stay(tmp_path: Path) -> None:
    run(tmp_path, lambda store: store.put("object", b"x"))
    folder = tmp_path / RESERVED_DIRECTORY / "temporary"
    now = SystemClock().time_ms() / 1000
    for name, age in (("dead", LEFTOVER_AGE_SECONDS + 60), ("alive", LEFTOVER_AGE_SECONDS - 60)):
        (folder / name).write_bytes(b"half an obj")
        os.utime(folder / name, (now - age, now - age))
    assert run(tmp_path, lambda store: store.put("object", b"y"))
    assert temporary_files(tmp_path) == ["alive"]


def test_a_put_whose_temporary_file_was_swept_is_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swept_before(source: str, target: str) -> None:
        Path(source).unlink()
        link_file(source, target)

    monkeypatch.setattr(directory_module, "_UNNAMED_FLAG", 0)

    async def story(store: FilesystemStore) -> None:
        await store.put("first", b"x")
        monkeypatch.setattr(directory_module, "link_file", swept_before)
        with pytest.raises(StoreNotApplied):
            await store.put("second", b"x", IfAbsent())
        with pytest.raises(ObjectNotFound):
            await store.get("second")

    run(tmp_path, story)


def refusing_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS refuses such files, and so does a kernel that does not know the flag."""
    opened = os.open

    def open_named(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", open_named)


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, as in a chroot, a process cannot reach an open file by name."""
    link = os.link

    def link_named(source: str, path: str, **options: Any) -> None:
        if source.startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        link(source, path, **options)

    monkeypatch.setattr(os, "link", link_named)


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="the system has no unnamed files")
@pytest.mark.parametrize("restricted", [None, refusing_unnamed_files, without_proc])
def test_with_and_without_unnamed_files_a_put_wins_once_and_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    restricted: Callable[[pytest.MonkeyPatch], None] | None,
) -> None:
    names: list[str] = []

    def link_and_note(source: str, path: str) -> None:
        names.append(source)
        link_file(source, path)

    async def story(store: FilesystemStore) -> None:
        etag = await store.put("log/0", [b"x", b"yz"], IfAbsent())
        assert (await store.head("log/0")).etag == etag
        with pytest.raises(PreconditionFailed):
            await store.put("log/0", b"other", IfAbsent())
        assert (await store.get("log/0")).data == b"xyz"
        monkeypatch.setattr(directory_module, "link_file", link_and_note)
        await store.put("log/1", b"1", IfAbsent())

    if restricted is not None:
        restricted(monkeypatch)
    run(tmp_path, story)
    assert temporary_files(tmp_path) == []
    assert [name.startswith("/proc/") for name in names] == [restricted is None]


def test_every_directory_on_the_way_to_an_object_is_synced_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, list[str]]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, os.listdir(descriptor)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    root = tmp_path / "new" / "store"
    # Another process has made the directory, but has not synced it yet.
    (root / "wal").mkdir(parents=True)

    async def story(store: FilesystemStore) -> None:
        await store.put("wal/1-1/0", b"x", IfAbsent())
        for directory, entry in (
            (root.parent, "store"),
            (root, "wal"),
            (root / "wal", "1-1"),
            (root / "wal" / "1-1", "0"),
        ):
            inode = directory.stat().st_ino
            assert any(i == inode and entry in names for i, names in synced), directory
        synced.clear()
        await store.put("wal/1-1/1", b"x", IfAbsent())
        assert [inode for inode, _ in synced] == [(root / "wal/1-1").stat().st_ino]
        synced.clear()
        with pytest.raises(PreconditionFailed):
            await store.put("wal/1-1/1", b"y", IfAbsent())
        assert len(synced) == 1, "the loser may rely on the winner's object"

    run(root, story)


def test_a_removed_directory_is_made_again(tmp_path: Path) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("a/b/c", b"x")
        (tmp_path / "a/b/c").unlink()
        (tmp_path / "a/b").rmdir()
        await store.put("a/b/d", b"y", IfAbsent())
        assert (await store.get("a/b/d")).data == b"y"

    run(tmp_path, story)


def test_a_write_that_the_system_takes_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev = os.writev

    def seven_bytes(descriptor: int, buffers: list[memoryview]) -> int:
        first = buffers[0][:7]
        if len(first) == 7 or len(buffers) == 1:
            return writev(descriptor, [first])
        return writev(descriptor, [first, buffers[1][: 7 - len(first)]])

    monkeypatch.setattr(os, "writev", seven_bytes)
    pieces = [b"12345", b"", b"67890123456789", b"x" * 100, b"y"]

    async def story(store: FilesystemStore) -> None:
        await store.put("object", pieces)
        assert (await store.get("object")).data == b"".join(pieces)

    run(tmp_path, story)
