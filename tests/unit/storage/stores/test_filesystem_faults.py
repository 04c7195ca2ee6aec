"""The filesystem store on failing disks: each request is applied, or its error says that it was
not."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage.stores.filesystem_faults import failing, run, temporary_files
from tidelog.storage.object_store import (
    AccessDenied,
    IfAbsent,
    ObjectNotFound,
    StoreFull,
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
)
from tidelog.storage.stores import directory as directory_module
from tidelog.storage.stores.files import link_file
from tidelog.storage.stores.filesystem import FilesystemStore


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
        # A read back would show an object that the disk may not have.
        with pytest.raises(StoreMisconfigured, match="check the disk"):
            await store.get("log/1")
        with pytest.raises(StoreMisconfigured, match="check the disk"):
            await store.put("log/2", b"z", IfAbsent())

    run(tmp_path, story)


@pytest.mark.parametrize("condition", [IfAbsent(), None])
def test_a_put_that_lacks_a_file_descriptor_is_not_applied_and_harms_no_later_put(
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


def test_a_full_disk_that_takes_no_new_file_lets_objects_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def open_present(path: str, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & os.O_CREAT and not Path(path).exists():
            failing(errno.ENOSPC)()
        return opened(path, flags, *arguments, **named)

    async def story(store: FilesystemStore) -> None:
        keys = [f"log/{number}" for number in range(100)]
        for key in keys:
            await store.put(key, b"x", IfAbsent())
        monkeypatch.setattr(os, "open", open_present)
        await store.delete(*keys)
        assert [meta.key async for meta in store.list("log/")] == []

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


def failing_for(name: str, code: int) -> Any:
    """`os.stat` that fails for the file of this name."""
    really_stat = os.stat

    def stat(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if str(path).endswith(name):
            failing(code)()
        return really_stat(path, *arguments, **named)

    return stat


def test_a_listing_whose_file_cannot_be_looked_at_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another error than a store's would end the broker."""

    async def story(store: FilesystemStore) -> None:
        await store.put("a/first", b"0")
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", failing_for("a/first", errno.EIO))
            with pytest.raises(StoreNotApplied, match="could not be read"):
                [meta async for meta in store.list("a/")]
        assert [meta.key async for meta in store.list("a/")] == ["a/first"]

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("code", "expected"), [(errno.EIO, StoreNotApplied), (errno.EACCES, AccessDenied)]
)
def test_a_delete_whose_file_cannot_be_looked_at_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    async def story(store: FilesystemStore) -> None:
        await store.put("a/first", b"0")
        await store.put("b/second", b"0")
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", failing_for("b/second", code))
            with pytest.raises(expected, match="b/second"):
                await store.delete("a/first", "b/second")
        await store.delete("a/first", "b/second")
        assert [meta.key async for meta in store.list()] == []

    run(tmp_path, story)


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
