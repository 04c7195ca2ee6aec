"""Large files past the page cache: the same bytes for every alignment, and on any file system."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidelog.storage.object_store import Buffer
from tidelog.storage.stores import direct_io
from tidelog.storage.stores.direct_io import (
    BLOCK_BYTES,
    DIRECT_BYTES_MIN,
    IS_POSSIBLE,
    aligned_buffer,
    read_directly,
    write_directly,
)
from tidelog.storage.stores.files import read_fully, write_fully

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="this system has no direct reads or writes")

CONTENT = random.Random(7).randbytes(3 * 1024 * 1024 + 777)
SIZES = (
    DIRECT_BYTES_MIN,
    DIRECT_BYTES_MIN + 1,
    DIRECT_BYTES_MIN + BLOCK_BYTES - 1,
    1024 * 1024,
    len(CONTENT),
)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def parts(content: bytes, *lengths: int) -> list[Buffer]:
    found: list[Buffer] = []
    for length in lengths:
        found.append(memoryview(content)[:length])
        content = content[length:]
    return [*found, bytearray(content)]


def aligned(content: bytes) -> memoryview:
    buffer = aligned_buffer(len(content))
    buffer[:] = content
    return buffer


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lengths", [(), (0, 1), (64, 100_000, 4096), (1_048_576, 5)])
def test_written_bytes_are_read(tmp_path: Path, size: int, lengths: tuple[int, ...]) -> None:
    content = CONTENT[:size]
    with opened(tmp_path / "file") as descriptor:
        write_fully(descriptor, parts(content, *lengths))
        assert (tmp_path / "file").read_bytes() == content
        assert read_fully(descriptor, 0, size) == content


@pytest.mark.parametrize("size", SIZES)
def test_aligned_memory_is_written_as_it_lies(tmp_path: Path, size: int) -> None:
    content = CONTENT[:size]
    with opened(tmp_path / "file") as descriptor:
        write_fully(descriptor, [aligned(content)])
        assert (tmp_path / "file").read_bytes() == content
        os.lseek(descriptor, 0, os.SEEK_SET)
        cut = 3 * BLOCK_BYTES + 5
        write_fully(descriptor, [aligned(content[:cut]), content[cut:]])
        assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 5000])
@pytest.mark.parametrize("is_cached", [False, True])
def test_ranges_of_any_bounds_are_read(tmp_path: Path, start: int, is_cached: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    with opened(path) as descriptor:
        os.fsync(descriptor)
        if not is_cached:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for end in (start + DIRECT_BYTES_MIN, len(CONTENT) - 1, len(CONTENT)):
            assert read_fully(descriptor, start, end) == CONTENT[start:end]
        assert read_directly(descriptor, start, len(CONTENT) + 10_000) == CONTENT[start:]


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT[:300_000])
    with opened(path) as descriptor, pytest.raises(OSError, match="shorter"):
        read_fully(descriptor, 0, 400_000)


def test_flags_are_as_they_were(tmp_path: Path) -> None:
    with opened(tmp_path / "file") as descriptor:
        before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        write_fully(descriptor, [CONTENT])
        read_fully(descriptor, 0, len(CONTENT))
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) == before


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_it_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(os, "preadv", refuse)
    with opened(tmp_path / "file") as descriptor:
        write_fully(descriptor, [CONTENT])
        assert read_fully(descriptor, 5, len(CONTENT)) == CONTENT[5:]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_file_system_that_does_not_know_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def refuse(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes")
        return real(descriptor, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with opened(tmp_path / "file") as descriptor:
        assert write_directly(descriptor, [CONTENT], len(CONTENT)) == 0
        write_fully(descriptor, [CONTENT])
        assert read_fully(descriptor, 0, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("taken", [BLOCK_BYTES, 5 * BLOCK_BYTES, 5 * BLOCK_BYTES + 1, 100])
def test_a_system_that_takes_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, data, at: real(descriptor, bytes(data[:taken]), at)
    )
    monkeypatch.setattr(direct_io, "_DIRECT_FLAG", 0)
    with opened(tmp_path / "file") as descriptor:
        write_fully(descriptor, parts(CONTENT, 10, 100_000))
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_full_disk_is_no_reason_to_go_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with opened(tmp_path / "file") as descriptor:
        with pytest.raises(OSError, match="No space"):
            write_fully(descriptor, [CONTENT])
        assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
