"""A copy of a bucket in use is a state that the bucket had; the model notices broken orders."""

from __future__ import annotations

import pytest

from tests.models.bucket_copy import MOVED, STILL, VARIANTS, WIDE, caught, model


def test_a_copy_holds_in_small_worlds_as_a_whole() -> None:
    for limits in (STILL, MOVED):
        outcome = model(limits).explore(1_000_000)
        assert outcome.violation is None, str(outcome)
        assert outcome.whole


def test_a_copy_holds_in_long_runs() -> None:
    outcome = model(WIDE).walk(walks=300, length=120, seed=1)
    assert outcome.violation is None, str(outcome)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_order_is_noticed(variant: str) -> None:
    assert caught(variant).violation is not None
