"""Messages through memory that two sides share."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from io import FileIO
from pathlib import Path
from socket import socketpair

import numpy as np
import pytest

from tidelog.clock import SystemClock
from tidelog.storage.object_store import Buffer
from tidelog.storage.stores.memory import MemoryStore
from tidelog.workers.memory_files import memory_file
from tidelog.workers.process_channel import GIVEN_BYTES_MIN, STEP_BYTES, Channel, packed

LARGE = memoryview(os.urandom(GIVEN_BYTES_MIN))


@pytest.fixture
def sides() -> Iterator[tuple[Channel, Channel]]:
    """Both sides in this process, each with descriptors of its own."""
    ours, theirs = socketpair()
    memory = memory_file()
    same = FileIO(os.dup(memory.fileno()), "r+")
    with closing(Channel(ours, memory)) as one, closing(Channel(theirs, same)) as other:
        yield one, other


def send(channel: Channel, message: object) -> None:
    for _ in channel.send(packed(message)):
        pass


def mapped_bytes() -> int:
    """The size of the channel's memory that is mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    areas = [
        line.split()[0].split("-") for line in lines if line.endswith("memfd:tidelog (deleted)")
    ]
    return sum(int(end, 16) - int(start, 16) for start, end in areas)


def until(condition: Callable[[], bool]) -> None:
    """Wait for the effect of a thread."""
    for _ in range(1_000_000):
        if condition():
            return
    raise AssertionError("the condition did not come about")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_sides_speak_in_turn_through_memory_that_grows_as_it_must(
    sides: tuple[Channel, Channel],
) -> None:
    one, other = sides
    for size in (0, 1, 100_000, 3, 5_000_000, 7):
        sent = memoryview(os.urandom(size))
        send(one, ("asked", sent))
        assert other.receive() == ("asked", sent)
        other.give(packed(np.arange(size)))
        assert np.array_equal(one.receive(), np.arange(size))


def test_received_bytes_stay_unchanged(sides: tuple[Channel, Channel]) -> None:
    one, other = sides
    send(one, memoryview(b"first" * 1000))
    first = other.receive()
    send(other, memoryview(b"second" * 1000))
    assert bytes(first) == b"first" * 1000


@pytest.mark.parametrize("count", [1, 5, 300])
def test_a_sender_may_do_other_work_in_between(sides: tuple[Channel, Channel], count: int) -> None:
    """This holds for parts of any size."""
    one, other = sides
    parts = [memoryview(bytes(8 * STEP_BYTES // count + 1)) for _ in range(count)]
    # Now the memory is as large as the message needs.
    send(one, parts)
    other.receive()
    assert sum(1 for _ in one.send(packed(parts))) >= 8
    assert other.receive() == parts


@pytest.mark.parametrize("size", [1000, GIVEN_BYTES_MIN])
def test_received_bytes_can_be_kept_without_a_copy(
    sides: tuple[Channel, Channel], size: int
) -> None:
    """A store in memory keeps them, for example: no code can change them."""
    one, other = sides
    one.give(packed(memoryview(bytearray(size))))
    view = other.receive()
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1

    async def stored() -> Buffer:
        store = MemoryStore(SystemClock())
        await store.put("key", [view])
        return (await store.get("key")).data

    kept = np.frombuffer(asyncio.run(stored()), np.uint8)
    assert len(kept) == size
    assert np.shares_memory(kept, np.frombuffer(view, np.uint8))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at how Linux has mapped it")
def test_given_memory_stays_as_long_as_a_view_exists(
    sides: tuple[Channel, Channel],
) -> None:
    one, other = sides
    gc.collect()
    before, descriptors = mapped_bytes(), open_descriptors()
    kept = []
    for number in range(20):
        one.give(packed([memoryview(bytes([number])) for _ in range(2000)] + [LARGE]))
        found = other.receive()
        kept.append((found[7], found[-1]))
    del found
    assert mapped_bytes() - before >= 20 * GIVEN_BYTES_MIN
    assert open_descriptors() == descriptors
    assert [bytes(small) for small, _ in kept] == [bytes([number]) for number in range(20)]
    assert all(large == LARGE for _, large in kept)
    kept = [(small, small) for small, _ in kept[:1]]
    until(lambda: GIVEN_BYTES_MIN < mapped_bytes() - before < 2 * GIVEN_BYTES_MIN)
    kept.clear()
    until(lambda: mapped_bytes() == before)


def test_the_end_of_the_other_side_is_an_end(sides: tuple[Channel, Channel]) -> None:
    one, other = sides
    send(one, "last words")
    one.close()
    assert other.receive() == "last words"
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(OSError, match="pipe"):
        send(other, "still there?")
    with pytest.raises(OSError, match="pipe"):
        other.give(packed(LARGE))


def test_memory_that_is_not_to_be_had_is_an_error(
    sides: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check a signal would end the process when it writes to the memory."""
    one, other = sides

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        patch.setattr(os, "pwritev", refuse)
        with pytest.raises(OSError, match="No space left"):
            send(one, "anything")
        with pytest.raises(OSError, match="No space left"):
            one.give(packed(LARGE))
    send(one, "again")
    assert other.receive() == "again"


def test_memory_that_holds_less_than_the_message_is_an_error(
    sides: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = sides
    monkeypatch.setattr(os, "pwritev", lambda *_: 4096)
    with pytest.raises(OSError, match="No space left"):
        one.give(packed(LARGE))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' behaviour is not known")
def test_a_receiver_without_descriptors_to_spare_is_told(sides: tuple[Channel, Channel]) -> None:
    """The system silently drops descriptors for which the receiver has no numbers left."""
    one, other = sides
    one.give(packed(LARGE))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            other.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="others have no seals")
def test_the_giver_of_memory_cannot_change_it_any_more(sides: tuple[Channel, Channel]) -> None:
    one, other = sides
    files: list[FileIO] = []

    def remembered() -> FileIO:
        files.append(create())
        return FileIO(os.dup(files[-1].fileno()), "r+")

    create = memory_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidelog.workers.memory_files.memory_file", remembered)
        one.give(packed(LARGE))
    (file,) = files
    with file:
        for change in (lambda: os.pwrite(file.fileno(), b"x", 0), lambda: file.truncate(0)):
            with pytest.raises(PermissionError):
                change()
    assert other.receive() == LARGE
