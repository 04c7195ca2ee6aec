"""The report of attacks, and how attacks are found."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack, Target, all_attacks, attack
from tests.attack.good_client import Seen
from tests.attack.probe import Told
from tests.attack.report import Outcome, report, rows_of


async def nothing(_target: Target) -> None:
    """Does nothing."""


def outcome(name: str, *, harm: str = "", told: Told | None = None) -> Outcome:
    attack = Attack(name, "Does | nothing.", nothing, 5.0, {"num.partitions": 3})
    before, under = Seen([0.001] * 99 + [0.25]), Seen([0.002, 0.004], ["EOFError: closed"])
    return Outcome(attack, before, under, (100.0, 200.4), told or Told(8), harm)


def test_a_row_has_the_findings_of_the_client_and_the_probe() -> None:
    row = outcome("some frames").row()
    seen, broker = "1.0, 250.0, 250.0 | 4.0, 4.0, 4.0 | 1 of 2 | 100, 200", "healthy | survived"
    assert row == f"| some frames | {seen} | {broker} |"
    told = Told(8, 3, {"clients wait": None})
    row = outcome("some frames", harm="ended", told=told).row()
    assert row.endswith("| clients wait; 3 of 8 probes unanswered | **ended** |")


def test_a_renewed_row_takes_the_place_of_its_own_and_the_rows_of_attacks_that_went_are_gone() -> (
    None
):
    first, second, gone = outcome("first"), outcome("second"), outcome("gone")
    attacks = {each.attack.name: each.attack for each in (second, first)}
    text = report(attacks, {each.attack.name: each.row() for each in (first, second, gone)}, "Now.")
    assert list(rows_of(text)) == ["second", "first"]
    assert "- **first**, 5 s (with `num.partitions=3`): Does | nothing.\n" in text
    again = outcome("first", harm="ended").row()
    renewed = report(attacks, rows_of(text) | {"first": again}, "Later.")
    assert rows_of(renewed) == {"second": second.row(), "first": again}


def test_every_attack_is_found_bounded_and_described() -> None:
    found = all_attacks()
    assert found
    for name, each in found.items():
        assert each.name == name
        assert each.says.endswith("."), name
        assert 0 < each.seconds <= 60


def test_an_attack_without_words_is_refused() -> None:
    async def mute(_target: Target) -> None: ...

    with pytest.raises(ValueError, match="has no docstring"):
        attack()(mute)
    with pytest.raises(ValueError, match="lasts"):
        attack(seconds=600)
