"""The protocol holds in the models, and the models notice when it is broken."""

from __future__ import annotations

import pytest

from tests.models import fencing, ownership
from tests.models.ownership_world import VARIANTS, WIDE, Limits


def test_the_fencing_of_a_wal_holds() -> None:
    outcome = fencing.model(fencing.Limits()).explore(100_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.states >= 100_000


def test_the_fencing_of_a_wal_holds_in_the_smallest_world_as_a_whole() -> None:
    outcome = fencing.model(fencing.Limits(slots=2, repeats=0)).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


def test_the_fencing_of_a_wal_holds_in_long_runs() -> None:
    outcome = fencing.model(fencing.WIDE).walk(walks=1_000, length=150, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", fencing.VARIANTS)
def test_broken_fencing_is_noticed(variant: str) -> None:
    assert fencing.catch(variant, states_max=300_000).violation is not None


def test_ownership_holds() -> None:
    outcome = ownership.model(Limits()).explore(30_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.states >= 30_000


SMALL = [
    Limits(appends=1, changes=1, rolls=0, checkpoints=1, reads=0, merges=0),
    Limits(appends=1, changes=1, rolls=1, checkpoints=0, reads=0, merges=0),
    Limits(appends=1, changes=2, rolls=0, checkpoints=0, reads=0, merges=0),
    Limits(appends=0, changes=3, rolls=0, checkpoints=0, reads=0, merges=0),
    Limits(appends=1, changes=1, rolls=0, checkpoints=0, reads=1, merges=0),
    Limits(appends=1, changes=0, rolls=0, checkpoints=1, reads=1, merges=1),
    Limits(appends=1, changes=1, rolls=0, checkpoints=0, reads=0, merges=1),
]


@pytest.mark.parametrize("limits", SMALL, ids=str)
def test_ownership_holds_in_small_worlds_as_a_whole(limits: Limits) -> None:
    outcome = ownership.model(limits).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


def test_ownership_holds_in_long_runs() -> None:
    outcome = ownership.model(WIDE).walk(walks=400, length=150, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_broken_ownership_is_noticed(variant: str) -> None:
    assert ownership.catch(variant).violation is not None
