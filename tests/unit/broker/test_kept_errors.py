"""Kept errors hold only their message, and no objects of the frames that raised them."""

from __future__ import annotations

import gc
import weakref

from tidelog.errors import CorruptObject, without_frames


class Bytes:
    """A large object in the frame of the failure."""


def failed() -> tuple[CorruptObject, list[weakref.ref[Bytes]]]:
    """An error with a cause, and the objects that the errors' frames hold."""
    held: list[weakref.ref[Bytes]] = []

    def read() -> None:
        data = Bytes()
        held.append(weakref.ref(data))
        raise ValueError("too short")

    def decode() -> None:
        data = Bytes()
        held.append(weakref.ref(data))
        try:
            read()
        except ValueError as error:
            raise CorruptObject("wal/0-1/7.wal", "it ends early") from error

    try:
        decode()
    except CorruptObject as error:
        return error, held
    raise AssertionError


def test_a_kept_error_releases_the_locals_of_its_frames() -> None:
    error, held = failed()
    gc.collect()
    assert all(each() is not None for each in held)
    kept = without_frames(error)
    gc.collect()
    assert kept is error
    assert not any(each() is not None for each in held)


def test_a_kept_error_keeps_its_message_and_its_cause() -> None:
    error, _ = failed()
    assert str(without_frames(error)) == "object wal/0-1/7.wal is corrupt: it ends early"
    assert isinstance(error.__cause__, ValueError)


def test_errors_that_caused_each_other_are_no_endless_way() -> None:
    first, second = CorruptObject("a", "b"), CorruptObject("c", "d")
    first.__context__, second.__context__ = second, first
    assert without_frames(first) is first
