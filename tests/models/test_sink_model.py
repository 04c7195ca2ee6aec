"""The exactly-once sink holds in the model, and the model notices when it is broken."""

from __future__ import annotations

import pytest

from tests.models.sink import COLLECTED, VARIANTS, WIDE, Limits, catch, model


def test_a_sink_that_commits_one_batch_twice_at_once_holds_in_every_state() -> None:
    outcome = model(Limits(batches=1, calls=2, crashes=1)).explore(1_000_000)
    assert outcome.violation is None, str(outcome)
    assert outcome.whole


@pytest.mark.parametrize("limits", [Limits(), COLLECTED], ids=str)
def test_a_sink_holds(limits: Limits) -> None:
    outcome = model(limits).explore(8_000)
    assert outcome.violation is None, str(outcome)


def test_a_sink_holds_in_long_runs() -> None:
    outcome = model(WIDE).walk(walks=100, length=150, seed=1)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_sink_is_noticed(variant: str) -> None:
    assert catch(variant, states_max=60_000).violation is not None
