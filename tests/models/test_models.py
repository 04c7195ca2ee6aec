"""The protocol holds in the models, and the models notice when it is broken."""

from __future__ import annotations

import pytest

from tests.models import fencing, metadata_end, ownership, wal_end
from tests.models.ownership_world import REFERENCE_VARIANTS, VARIANTS, WIDE, Limits


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
    Limits(1, 1, 0, 0, 0, 0, openings=1, lost_replies=1),
    Limits(1, 1, 0, 0, 0, 0, openings=1, lost_replies=1, by_reference=True),
    Limits(1, 1, 1, 0, 0, 0, by_reference=True),
    Limits(1, 1, 0, 0, 1, 0, openings=1, by_reference=True),
]


@pytest.mark.parametrize("limits", SMALL, ids=str)
def test_ownership_holds_in_small_worlds_as_a_whole(limits: Limits) -> None:
    outcome = ownership.model(limits).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


@pytest.mark.parametrize("by_reference", [False, True], ids=["objects", "by reference"])
def test_ownership_holds_in_long_runs(by_reference: bool) -> None:
    wide = WIDE._replace(by_reference=by_reference)
    outcome = ownership.model(wide).walk(walks=200, length=150, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_broken_ownership_is_noticed(variant: str) -> None:
    assert ownership.catch(variant).violation is not None


@pytest.mark.parametrize("variant", REFERENCE_VARIANTS)
def test_a_broken_hand_over_by_reference_is_noticed(variant: str) -> None:
    assert ownership.catch_reference(variant).violation is not None


def test_ownership_holds_with_hand_over_by_reference() -> None:
    outcome = ownership.model(Limits(by_reference=True)).explore(15_000)
    assert outcome.violation is None, str(outcome)


def test_the_end_of_a_wal_proves_itself() -> None:
    outcome = wal_end.model(wal_end.Limits(slots=2)).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


@pytest.mark.parametrize(
    "limits",
    [
        wal_end.Limits(slots=4, sealers=2),
        wal_end.Limits(sealers=0, reads=1),
        wal_end.Limits(sealers=1, reads=1),
    ],
    ids=str,
)
def test_the_end_of_a_wal_proves_itself_to_sealers_and_readers(limits: wal_end.Limits) -> None:
    outcome = wal_end.model(limits).explore(50_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.states >= 50_000


def test_the_end_of_a_wal_proves_itself_in_long_runs() -> None:
    outcome = wal_end.model(wal_end.WIDE).walk(walks=2_000, length=150, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", wal_end.VARIANTS)
def test_a_wal_whose_end_proves_nothing_is_noticed(variant: str) -> None:
    assert wal_end.catch(variant).violation is not None


def test_the_metadata_log_proves_itself() -> None:
    outcome = metadata_end.model(metadata_end.Limits()).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


def test_the_metadata_log_proves_itself_in_long_runs() -> None:
    outcome = metadata_end.model(metadata_end.WIDE).walk(walks=1_000, length=150, seed=2)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", metadata_end.VARIANTS)
def test_a_metadata_log_that_proves_nothing_is_noticed(variant: str) -> None:
    assert metadata_end.catch(variant).violation is not None
