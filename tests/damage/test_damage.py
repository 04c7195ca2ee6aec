"""Whatever is damaged is named or harmless, and never served as the truth."""

from __future__ import annotations

import asyncio

import pytest

from tests.damage.damages import FEW_FLIPS, Kind, cases
from tests.damage.judge import Verdict, judged
from tests.damage.rich_bucket import RichBucket, build


@pytest.fixture(scope="module")
def rich() -> RichBucket:
    return asyncio.run(build())


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_damage_is_named_or_harmless_and_never_served(rich: RichBucket, kind: Kind) -> None:
    found = [case for case in cases(rich.objects, FEW_FLIPS, seed=1) if case.kind is kind]
    assert found, f"the bucket has no {kind.value}"
    outcomes = [judged(rich, case) for case in found]
    silent = [o.case for o in outcomes if o.verdict is Verdict.SILENT]
    assert not silent, [(case.key, case.damage.name) for case in silent]
    wrong = [(o.case.key, o.case.damage.name, o.wrong) for o in outcomes if o.wrong]
    assert not wrong, wrong


def test_the_bucket_is_sound_before_it_is_damaged(rich: RichBucket) -> None:
    key = min(rich.objects)
    (case, *_) = cases(rich.objects, FEW_FLIPS, seed=1)
    unchanged = case.damage._replace(data=rich.objects[case.key])
    outcome = judged(rich, case.__class__(case.kind, case.place, case.key, unchanged))
    assert (outcome.verdict, outcome.wrong) == (Verdict.HARMLESS, []), key
