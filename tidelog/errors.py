"""Tidelog's errors. Each names its subject, the effect on the data, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

NAMES_SHOWN = 3
E = TypeVar("E", bound=BaseException)


class TidelogError(Exception):
    """Root of every error that Tidelog raises on purpose."""


class InvalidConfiguration(TidelogError):
    """A setting, flag, URL or file is unusable; the message names it and the remedy."""


class CorruptObject(TidelogError):
    """An object of the bucket does not decode. No data that depends on it is served."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"object {key} is corrupt: {why}")
        self.key = key
        self.why = why

    def __reduce__(self) -> tuple[type[CorruptObject], tuple[str, str]]:
        """Pickle the error by its arguments: it may come from another process."""
        return type(self), (self.key, self.why)


class MissingObject(CorruptObject):
    """An object that must be in the bucket is missing."""


class UnsupportedFormat(TidelogError):
    """This version must not read or write the bucket's format."""


class ForeignObjects(TidelogError):
    """The prefix holds objects that are not Tidelog's."""


class Fenced(TidelogError):
    """Another incarnation supersedes this one, which must acknowledge nothing more and stop."""


class Unreachable(TidelogError):
    """A broker or store does not answer."""


class Refused(TidelogError):
    """The server understood the request and refused it."""


def some_of(names: Sequence[str], shown_max: int = NAMES_SHOWN) -> str:
    """The first `shown_max` names for a message, and the number of the others."""
    shown = ", ".join(names[:shown_max])
    others = len(names) - shown_max
    return shown if others <= 0 else f"{shown} and {others} more"


def without_frames(error: E) -> E:
    """The error without traceback frames, for errors that are kept or raised again.

    Its causes lose theirs too. Frames keep local variables alive, perhaps megabytes of a segment.
    Each raise of a kept error would add more frames.
    """
    seen: list[BaseException] = []
    causes: list[BaseException | None] = [error]
    while causes:
        each = causes.pop()
        if each is not None and each not in seen:
            seen.append(each)
            each.__traceback__ = None
            causes += (each.__cause__, each.__context__)
    return error
