"""Messages through memory that two sides share."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from io import FileIO
from socket import socketpair

import numpy as np
import pytest

from tidelog.process_channel import Channel, packed, shared_memory


@pytest.fixture
def sides() -> Iterator[tuple[Channel, Channel]]:
    """Both in this process, each with descriptors of its own."""
    ours, theirs = socketpair()
    memory = shared_memory()
    same = FileIO(os.dup(memory.fileno()), "r+")
    with closing(Channel(ours, memory)) as one, closing(Channel(theirs, same)) as other:
        yield one, other


def test_sides_speak_in_turn_through_memory_that_grows_as_it_must(
    sides: tuple[Channel, Channel],
) -> None:
    one, other = sides
    for size in (0, 1, 100_000, 3, 5_000_000, 7):
        sent = memoryview(os.urandom(size))
        one.send(packed(("asked", sent)))
        assert other.receive() == ("asked", sent)
        other.send(packed(np.arange(size)))
        assert np.array_equal(one.receive(), np.arange(size))


def test_what_was_received_stays_as_it_was(sides: tuple[Channel, Channel]) -> None:
    one, other = sides
    one.send(packed(memoryview(b"first" * 1000)))
    first = other.receive()
    other.send(packed(memoryview(b"second" * 1000)))
    assert bytes(first) == b"first" * 1000


def test_what_was_received_can_be_kept_without_a_copy(sides: tuple[Channel, Channel]) -> None:
    """By a store in memory, for one: it is nobody's to change."""
    one, other = sides
    one.send(packed([memoryview(bytearray(100)), memoryview(b"b" * 100)]))
    for view in other.receive():
        assert not view.obj.flags.writeable
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1


def test_the_end_of_the_other_side_is_an_end(sides: tuple[Channel, Channel]) -> None:
    one, other = sides
    one.send(packed("last words"))
    one.close()
    assert other.receive() == "last words"
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(OSError, match="pipe"):
        other.send(packed("still there?"))


def test_memory_that_is_not_to_be_had_is_an_error(
    sides: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a signal that ends the process when it is written to."""
    one, other = sides

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="No space left"):
            one.send(packed("anything"))
    one.send(packed("again"))
    assert other.receive() == "again"
