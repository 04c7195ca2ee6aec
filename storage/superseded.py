"""Rule F4: a missing object was superseded by a newer one, or it is lost.

An object is deleted only when something newer has taken its place: a merged object, a segment, a
snapshot, a checkpoint. A reader that does not find an object looks at the reference again. If the
reference still names the object, the object is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tidelog.errors import MissingObject
from tidelog.storage.object_store import ObjectNotFound, StoreNotApplied

T = TypeVar("T")

LOOKS_MAX = 16
"""Times that a read begins again because what it reads has changed."""


@contextmanager
def required() -> Iterator[None]:
    """Reads of objects that something durable names: absence is MissingObject in here."""
    try:
        yield
    except ObjectNotFound as error:
        raise MissingObject(error.key, "it is missing") from error


async def retry_if_superseded(
    read: Callable[[], Awaitable[T]],
    is_superseded: Callable[[MissingObject], Awaitable[bool]] | None = None,
    *,
    looks_max: int = LOOKS_MAX,
) -> T:
    """What `read` gives; it is called again where an object that it missed was superseded.

    `is_superseded` looks at the newest reference. Without it `read` begins at the reference each
    time, so the same object missing twice in a row is lost. Raises MissingObject for a lost object,
    StoreNotApplied where the references change faster than they can be read.
    """
    missing = None
    for _ in range(looks_max):
        try:
            return await read()
        except MissingObject as error:
            lost = missing == error.key if is_superseded is None else not await is_superseded(error)
            if lost:
                raise
            missing = error.key
    raise StoreNotApplied(missing or "", "it changes faster than it can be read; try again")
