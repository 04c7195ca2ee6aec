"""Transactions over two brokers hold in the model, and the model notices when they are broken."""

from __future__ import annotations

import pytest

from tests.models.transaction import VARIANTS, WIDE, Limits, catch, model


def test_transactions_hold() -> None:
    outcome = model(Limits()).explore(30_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.states >= 30_000


SMALL = [
    Limits(transactions=1, crashes=1, timeouts=1),
    Limits(transactions=2, crashes=1, timeouts=1),
    Limits(transactions=1, crashes=1, timeouts=1, delays=1),
    Limits(transactions=2, crashes=0, timeouts=1, delays=1),
]


@pytest.mark.parametrize("limits", SMALL, ids=str)
def test_transactions_hold_in_small_worlds_as_a_whole(limits: Limits) -> None:
    outcome = model(limits).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


@pytest.mark.parametrize("limits", [WIDE, WIDE._replace(delays=2)], ids=str)
def test_transactions_hold_in_long_runs(limits: Limits) -> None:
    outcome = model(limits).walk(walks=300, length=120, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_broken_transactions_are_noticed(variant: str) -> None:
    assert catch(variant, states_max=100_000).violation is not None
