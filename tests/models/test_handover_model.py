"""Partitions change their owner together in the model, and it notices when a rule is broken."""

from __future__ import annotations

import pytest

from tests.models.handover import catch, model
from tests.models.handover_world import RETURNS, TAKEOVER, VARIANTS, WIDE, Limits

SMALL = [
    Limits(partitions=1, fences=0),
    RETURNS._replace(crashes=0, fences=0),
    TAKEOVER._replace(crashes=1),
    Limits(appends=0, crashes=0, fences=0, graces=1),
    Limits(partitions=1, crashes=0, graces=1),
]


@pytest.mark.parametrize("limits", SMALL, ids=str)
def test_partitions_change_their_owner_in_small_worlds_as_a_whole(limits: Limits) -> None:
    outcome = model(limits).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


def test_partitions_change_their_owner() -> None:
    outcome = model(Limits()).explore(20_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.states >= 20_000


def test_partitions_change_their_owner_in_long_runs() -> None:
    outcome = model(WIDE).walk(walks=1_000, length=120, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_hand_over_is_noticed(variant: str) -> None:
    assert catch(variant).violation is not None
