"""The verdict on a bucket that was written for an hour depends on the load, and not on the number
of objects alone."""

from __future__ import annotations

import pytest

from benchmarks.broker.growth import is_level, minutes_held


@pytest.mark.parametrize(
    ("slots_a_second", "objects", "held"),
    [
        ([100, 100, 100], 12_000, 2.0),
        ([100, 100, 50], 4500, 1.25),
        ([400, 400, 10], 1200, 1.025),
        ([100, 100, 0], 3000, 1.5),
        ([100, 100], 12_001, 2.0),
    ],
)
def test_objects_are_counted_in_minutes_of_writing(
    slots_a_second: list[float], objects: int, held: float
) -> None:
    assert minutes_held(slots_a_second, objects) == pytest.approx(held)


def test_a_bucket_that_holds_ever_more_minutes_is_growing() -> None:
    assert is_level([1, 2, 11, 11.5, 10, 12])
    assert not is_level([1, 2, 3, 4, 5, 6])
    assert not is_level([11, 11, 11, 11, 11, 13])
