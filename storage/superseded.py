"""Rule F4: a missing object was superseded by a newer one, or it is lost.

An object is deleted only after a newer one has taken its place: a merged object, a segment, a
snapshot, a checkpoint. A reader found the missing object by a reference: in a table, a partition's
log, a listing. It looks at the reference again.

| the reference now                        | the read                                      |
|------------------------------------------|-----------------------------------------------|
| names another object, or none            | begins again                                  |
| names the same object                    | ends with MissingObject: the object is lost   |
| has changed at each of `looks_max` looks | ends with StoreNotApplied, a transient error  |

A reader that dies meanwhile has changed nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tidelog.errors import MissingObject
from tidelog.storage.object_store import ObjectNotFound, StoreNotApplied

T = TypeVar("T")

LOOKS_MAX = 16
"""The most looks of a read whose references change."""


@contextmanager
def required() -> Iterator[None]:
    """Convert ObjectNotFound to MissingObject: durable references name the objects read in here."""
    try:
        yield
    except ObjectNotFound as error:
        raise MissingObject(error.key, "it is missing") from error


class Superseded(MissingObject):
    """The newest reference does not name the missing object: the read has to begin again."""


class Looks:
    """Counts one read's looks at its references, and judges the objects that it misses. Pure."""

    def __init__(self, place: str = "", looks_max: int = LOOKS_MAX) -> None:
        """`place`: named by the error of a read that never settles; by default the last object."""
        self._place = place
        self._looks_max = looks_max
        self._missing: str | None = None
        self.ended = 0
        """Looks that ended without an answer."""

    def is_lost(self, missing: MissingObject) -> bool:
        """True if the look before missed the same object.

        Each look must begin at the newest reference.
        """
        before, self._missing = self._missing, missing.key
        return before == missing.key

    def missed(self, missing: MissingObject) -> None:
        """End a look that missed an object.

        Raises MissingObject if the object is lost, else what `changed` raises.
        """
        if self.is_lost(missing):
            raise missing
        self.changed(missing.key)

    def changed(self, place: str = "") -> None:
        """End a look during which a reference changed. The last look raises StoreNotApplied."""
        self.ended += 1
        if self.ended >= self._looks_max:
            why = "it changes faster than it can be read; try again"
            raise StoreNotApplied(self._place or place, why)


async def retry_if_superseded(
    read: Callable[[], Awaitable[T]],
    *,
    looks_max: int = LOOKS_MAX,
) -> T:
    """The result of `read`, which is called again if an object that it missed was superseded.

    `read` must begin at the newest reference each time. So an object that it misses twice in a row
    is lost. It may look at the reference itself, and raise Superseded. Raises MissingObject for a
    lost object, and StoreNotApplied if the references change faster than they can be read.
    """
    looks = Looks(looks_max=looks_max)
    while True:
        try:
            return await read()
        except Superseded as superseded:
            looks.changed(superseded.key)
        except MissingObject as missing:
            looks.missed(missing)
