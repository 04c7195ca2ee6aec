"""Atomic snapshots never show a part of a transaction, in any order of the transactions' steps."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.bucket.atomic_world import VARIANTS, Violation, play

HISTORIES_MAX = 2000


@given(st.integers(0, 2**32), st.integers(1, 250))
def test_no_transaction_is_seen_in_part(seed: int, events: int) -> None:
    play(Random(seed), events)


def test_histories_show_something() -> None:
    assert sum(play(Random(seed), 80) for seed in range(200)) > 200


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_broken_variant_is_caught(variant: str) -> None:
    for seed in range(HISTORIES_MAX):
        try:
            play(Random(seed), 200, variant)
        except Violation:
            return
    pytest.fail(f"{HISTORIES_MAX} histories, and nothing was noticed")
