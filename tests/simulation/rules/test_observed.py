"""Histories of real clients are judged by the same rules as simulated ones."""

from __future__ import annotations

import pytest

from tests.simulation.rules.history import Key
from tests.simulation.rules.observed import Observations

LEFT, RIGHT = Key("left", 0), Key("right", 0)
Read = tuple[str, Key, int, str]
GOOD: list[Read] = [
    ("reader", LEFT, 3, "0"),
    ("reader", RIGHT, 0, "0"),
    ("reader", LEFT, 5, "1"),
    ("reader", RIGHT, 2, "1"),
]


def found(reads: list[Read]) -> set[str]:
    """Two inputs with an output in each topic, and a third one that was aborted."""
    seen = Observations()
    for number in ("0", "1"):
        seen.wrote("job", ("left", number), ("right", number))
    seen.wrote("job", ("left", "2"), ("right", "2"), is_aborted=True)
    for read in reads:
        seen.read(*read)
    return seen.check().names()


def test_each_output_once_and_in_order_is_right() -> None:
    assert found(GOOD) == set()


@pytest.mark.parametrize(
    ("reads", "names"),
    [
        (GOOD[:3], {"unseen"}),
        ([*GOOD, ("reader", LEFT, 7, "1")], {"duplicate"}),
        ([*GOOD, ("reader", LEFT, 7, "2")], {"G1a"}),
        ([*GOOD, ("reader", LEFT, 7, "9")], {"phantom"}),
        ([GOOD[2], GOOD[3], GOOD[0], GOOD[1]], {"nonmonotonic-poll"}),
        ([*GOOD, ("another", LEFT, 5, "7")], {"phantom", "inconsistent-offsets"}),
        (
            [("reader", LEFT, 3, "1"), ("reader", LEFT, 5, "0"), GOOD[1], GOOD[3]],
            {"nonmonotonic-send"},
        ),
    ],
)
def test_findings_of_real_brokers_readers_are_named(reads: list[Read], names: set[str]) -> None:
    assert found(reads) >= names
