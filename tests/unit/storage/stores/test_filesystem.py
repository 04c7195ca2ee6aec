"""The filesystem store: races between processes, crashes, and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy, SystemEntropy
from tidelog.storage.keys import RESERVED_DIRECTORY
from tidelog.storage.object_store import (
    AccessDenied,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    PreconditionFailed,
    StoreFull,
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
)
from tidelog.storage.stores import directory as directory_module
from tidelog.storage.stores.directory import LEFTOVER_AGE_SECONDS, Directory, Stamp
from tidelog.storage.stores.files import link_file
from tidelog.storage.stores.filesystem import FilesystemStore

T = TypeVar("T")
PROCESSES = 8
ROUNDS = 25
INCREMENTS = 6


class StoppedClock(SystemClock):
    """A wall clock that stands still: times alone cannot tell versions apart."""

    def time_ms(self) -> int:
        return 1_700_000_000_000


class NoEntropy(SeededEntropy):
    """Chance that never changes anything; only names differ, as files must."""

    def uniform(self, low: float, high: float) -> float:
        return low


def run(root: Path, story: Callable[[FilesystemStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = FilesystemStore(root, SystemClock(), SystemEntropy())
        try:
            return await story(store)
        finally:
            await store.close()

    return asyncio.run(main())


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def temporary_files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / RESERVED_DIRECTORY / "temporary").iterdir())


# --- races ---


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

    # The first link is the trial of the file system, while the first store opens.
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


def test_a_held_lock_keeps_nobody_from_creating_or_reading(tmp_path: Path) -> None:
    async def story(store: FilesystemStore) -> None:
        first = await store.put("lease", b"1")
        (stripe,) = (tmp_path / RESERVED_DIRECTORY / "locks").iterdir()
        with stripe.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
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


# --- crashes ---

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
    """As NFS does, or a kernel that does not know the flag."""
    opened = os.open

    def open_named(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", open_named)


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a chroot: there is no way to an open file by name."""
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


def test_own_files_are_no_objects(tmp_path: Path) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put(".other/a", b"x")
        await store.put("z", b"x")
        assert [meta.key async for meta in store.list()] == [".other/a", "z"]

    run(tmp_path, story)


# --- durability ---


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
    # Another process has made the directory and not come to syncing it.
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
        assert len(synced) == 1, "the loser may rely on what won"

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


# --- failing disks ---


@pytest.mark.parametrize(
    ("call", "code", "expected", "says"),
    [
        ("writev", errno.ENOSPC, StoreFull, "the disk is full: No space left on device .ENOSPC."),
        ("fdatasync", errno.ENOSPC, StoreFull, "free some space"),
        ("fdatasync", errno.EIO, StoreNotApplied, "nothing was stored"),
        ("link", errno.EDQUOT, StoreFull, "free some space"),
        ("link", errno.EROFS, AccessDenied, "Read-only file system"),
        ("link", errno.EACCES, AccessDenied, "writing is not allowed"),
        ("writev", errno.EMFILE, StoreNotApplied, "Too many open files"),
    ],
)
def test_a_write_that_fails_before_it_is_visible_is_not_applied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    expected: type[Exception],
    says: str,
) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("log/0", b"x", IfAbsent())
        with monkeypatch.context() as patch:
            module = (
                "tidelog.storage.stores.directory.sync_data"
                if call == "fdatasync"
                else f"os.{call}"
            )
            patch.setattr(module, failing(code))
            with pytest.raises(expected, match=says) as caught:
                await store.put("log/1", b"y", IfAbsent())
        assert "log/1" in str(caught.value)
        with pytest.raises(ObjectNotFound):
            await store.get("log/1")
        assert temporary_files(tmp_path) == []
        await store.put("log/1", b"z", IfAbsent())

    run(tmp_path, story)


def test_after_a_failed_directory_sync_the_store_believes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("log/0", b"x", IfAbsent())
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(StoreOutcomeUnknown, match="may have lost"):
            await store.put("log/1", b"y", IfAbsent())
        monkeypatch.undo()
        # Reading it back would show an object that the disk may not have.
        with pytest.raises(StoreMisconfigured, match="check the disk"):
            await store.get("log/1")
        with pytest.raises(StoreMisconfigured, match="check the disk"):
            await store.put("log/2", b"z", IfAbsent())

    run(tmp_path, story)


@pytest.mark.parametrize("condition", [IfAbsent(), None])
def test_a_put_that_lacks_a_file_descriptor_is_not_applied_and_harms_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: IfAbsent | None
) -> None:
    """Clients can use up the descriptors of a broker. Each open of a put fails once."""
    really_open = os.open

    async def story(store: FilesystemStore) -> int:
        await store.put("a/first", b"0")
        for lacking in range(20):
            left = iter([True] * lacking)

            def open_some(path: Any, *args: Any, **kwargs: Any) -> int:
                if next(left, False):  # noqa: B023 - called within this turn
                    return really_open(path, *args, **kwargs)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            key = f"a/b/{lacking}"
            monkeypatch.setattr(os, "open", open_some)
            try:
                await store.put(key, b"1", condition)
                return lacking
            except StoreNotApplied:
                pass
            finally:
                monkeypatch.setattr(os, "open", really_open)
            with pytest.raises(ObjectNotFound):
                await store.head(key)
            await store.put(key, b"2", condition)
        return -1

    assert run(tmp_path, story) > 1
    assert temporary_files(tmp_path) == []


def test_a_delete_that_lacks_a_file_descriptor_is_not_applied_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("a/first", b"0")
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", failing(errno.EMFILE))
            with pytest.raises(StoreNotApplied):
                await store.delete("a/first")
        assert (await store.head("a/first")).size == 1
        await store.delete("a/first")
        with pytest.raises(ObjectNotFound):
            await store.head("a/first")

    run(tmp_path, story)


def test_a_read_that_fails_may_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("object", b"x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", failing(errno.EIO))
            with pytest.raises(StoreNotApplied, match="could not be read"):
                await store.get("object")
        assert (await store.get("object")).data == b"x"

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


def test_a_cancelled_put_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may_go_on = threading.Event(), threading.Event()

    def slow(source: str, target: str) -> None:
        entered.set()
        may_go_on.wait(30)
        link_file(source, target)

    async def story(store: FilesystemStore) -> None:
        await store.put("first", b"x")
        monkeypatch.setattr(directory_module, "link_file", slow)
        put = asyncio.create_task(store.put("second", b"y", IfAbsent()))
        await asyncio.to_thread(entered.wait, 30)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        may_go_on.set()

    run(tmp_path, story)
    assert (tmp_path / "second").read_bytes() == b"y"
