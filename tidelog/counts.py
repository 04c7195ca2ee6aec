"""Counts as fields of dataclasses. The declaration of a field is that of its metric family.

    segments: int = counter("tidelog_roll_segments", "Segments that were stored.")

The fields are plain attributes: a count on the hot path is one addition. A collector reads all
declared fields, so a family that is declared is reported, and one that is not cannot be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

_KEY: Final = "family"


class FamilyKind(Enum):
    """The types of Prometheus that are in use."""

    COUNTER = "counter"
    """A number that only grows. Prometheus adds `_total` to the name."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """A metric family."""

    kind: FamilyKind
    name: str
    doc: str
    label: str = ""
    """The label of its series; empty if there is one series without labels. A field with a label
    has `items()`: the values of the label and theirs."""


class Durations:
    """A histogram: how often which duration, in seconds, was seen."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many were at most bounds[i]; the last is for all longer ones."""
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative counts by upper bound."""
        total = 0
        result: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            result.append((bound, total))
        return result


def counter(name: str, doc: str, label: str = "", *, new: Callable[[], Any] = int) -> Any:
    """A field that only grows. `new` makes its first value."""
    return _declared(Family(FamilyKind.COUNTER, name, doc, label), new)


def gauge(name: str, doc: str, label: str = "", *, new: Callable[[], Any] = int) -> Any:
    """A field that goes up and down."""
    return _declared(Family(FamilyKind.GAUGE, name, doc, label), new)


def timestamp(name: str, doc: str) -> Any:
    """A field for a time in seconds since 1970. It has no series while it is None."""
    return _declared(Family(FamilyKind.GAUGE, name, doc), lambda: None)


def histogram(name: str, doc: str, bounds: Sequence[float]) -> Any:
    """A field of Durations."""
    return _declared(Family(FamilyKind.HISTOGRAM, name, doc), partial(Durations, bounds))


def _declared(family: Family, new: Callable[[], Any]) -> Any:
    return field(default_factory=new, metadata={_KEY: family})


def declared(counts: Any) -> Iterator[tuple[Family, Any]]:
    """The families of a dataclass' fields, with the fields' values."""
    for each in fields(counts):
        if _KEY in each.metadata:
            yield each.metadata[_KEY], getattr(counts, each.name)
