"""The metadata log never names a deleted object of verifiers; the model notices broken rules."""

from __future__ import annotations

import pytest

from tests.models.verifiers import VARIANTS, WIDE, Limits, caught, model


def test_the_log_names_no_deleted_object_in_the_small_world_as_a_whole() -> None:
    outcome = model(Limits()).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


def test_the_log_names_no_deleted_object_in_long_runs() -> None:
    outcome = model(WIDE).walk(walks=500, length=120, seed=3)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_rule_is_noticed(variant: str) -> None:
    assert caught(variant).violation is not None
