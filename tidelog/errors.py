"""Tidelog's errors. Each says what it is about, what happened to the data, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

NAMES_SHOWN = 3
E = TypeVar("E", bound=BaseException)


class TidelogError(Exception):
    """Root of every error that Tidelog raises on purpose."""


class InvalidConfiguration(TidelogError):
    """A setting, flag, URL or file that cannot be used; the message names it and the remedy."""


class CorruptObject(TidelogError):
    """An object of the bucket that does not decode; nothing that rests on it is served."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"object {key} is corrupt: {why}")
        self.key = key
        self.why = why

    def __reduce__(self) -> tuple[type[CorruptObject], tuple[str, str]]:
        """It may have to come from another process."""
        return type(self), (self.key, self.why)


class MissingObject(CorruptObject):
    """An object that must be in the bucket and is not."""


class UnsupportedFormat(TidelogError):
    """The bucket was written in a format that this version must not read or write."""


class ForeignObjects(TidelogError):
    """The prefix holds objects that are not Tidelog's."""


class Fenced(TidelogError):
    """This incarnation has been superseded: it can acknowledge nothing more and must stop."""


class Unreachable(TidelogError):
    """A broker or store that does not answer."""


class Refused(TidelogError):
    """A request that was understood and turned down."""


def some_of(names: Sequence[str], shown_max: int = NAMES_SHOWN) -> str:
    """The first of them, as a message has room for, and how many others there are."""
    shown = ", ".join(names[:shown_max])
    others = len(names) - shown_max
    return shown if others <= 0 else f"{shown} and {others} more"


def to_keep(error: E) -> E:
    """The error as it can be kept, or raised once more: without the frames that it has come
    through, nor those of its causes. They hold what was at hand there, megabytes of a segment
    perhaps; and each time that an error is raised, frames are added to those that it has."""
    seen: list[BaseException] = []
    causes: list[BaseException | None] = [error]
    while causes:
        each = causes.pop()
        if each is not None and each not in seen:
            seen.append(each)
            each.__traceback__ = None
            causes += (each.__cause__, each.__context__)
    return error
