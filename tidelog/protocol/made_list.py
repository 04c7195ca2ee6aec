"""Long arrays whose elements are created during encoding, so that memory never holds them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, cast

from tidelog.protocol.wire import STEP_ELEMENTS

S = TypeVar("S")
T = TypeVar("T")


class MadeList(Generic[S, T]):
    """A lazy list with one element for each item of an immutable sequence."""

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
    """A list with one element for each item. A long one supports only `len` and iteration."""
    if len(items) <= STEP_ELEMENTS:
        return [make(each) for each in items]
    return cast("list[T]", MadeList(items, make))
