"""Transactions hold in the model while coordinator and partition move. The model notices broken
rules."""

from __future__ import annotations

import pytest

from tests.models.routing import VARIANTS, WIDE, Limits, catch, model

SMALL = [
    Limits(fences=0, moves=0),
    Limits(moves=0, deletions=0),
    Limits(fences=0, deletions=0),
]


@pytest.mark.parametrize("limits", SMALL, ids=str)
def test_routed_transactions_hold_in_small_worlds_as_a_whole(limits: Limits) -> None:
    outcome = model(limits).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


def test_routed_transactions_hold() -> None:
    outcome = model(Limits()).explore(20_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.states >= 20_000


def test_routed_transactions_hold_in_long_runs() -> None:
    outcome = model(WIDE).walk(walks=300, length=120, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_routing_is_noticed(variant: str) -> None:
    assert catch(variant).violation is not None
