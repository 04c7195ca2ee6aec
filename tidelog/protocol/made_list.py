"""Long arrays of answers whose elements are made as they are written, so that they never lie in
memory all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, cast

from tidelog.protocol.wire import STEP_ELEMENTS

S = TypeVar("S")
T = TypeVar("T")


class MadeList(Generic[S, T]):
    """An element for each item of a sequence that does not change."""

    def __init__(self, items: Sequence[S], make: Callable[[S], T]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | MadeList) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{list(self)!r}"


def made_list(items: Sequence[S], make: Callable[[S], T]) -> list[T]:
    """An element for each item. Of a long one there are only `len` and iteration."""
    if len(items) <= STEP_ELEMENTS:
        return [make(each) for each in items]
    return cast("list[T]", MadeList(items, make))
