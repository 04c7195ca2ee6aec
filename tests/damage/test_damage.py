"""Every damage is named or harmless, and never served as the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.damage.damages import FEW_FLIPS, Kind, cases, kind_of
from tests.damage.judge import Verdict, judged
from tests.damage.rich_bucket import RichBucket, build
from tidelog.broker.collect.mark_file import decode_marks
from tidelog.bucket.inspection import (
    checkpoint_facts,
    metadata_facts,
    staged_facts,
    state_facts,
    table_facts,
    wal_facts,
)
from tidelog.errors import CorruptObject
from tidelog.wal.format.image_codec import Images


@pytest.fixture(scope="module")
def rich() -> RichBucket:
    return asyncio.run(build())


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_damage_is_named_or_harmless_and_never_served(rich: RichBucket, kind: Kind) -> None:
    found = [case for case in cases(rich.objects, FEW_FLIPS, 1, rich.deleted) if case.kind is kind]
    assert found, f"the bucket has no {kind.value}"
    outcomes = [judged(rich, case) for case in found]
    silent = [o.case for o in outcomes if o.verdict is Verdict.SILENT]
    assert not silent, [(case.key, case.damage.name) for case in silent]
    wrong = [(o.case.key, o.case.damage.name, o.wrong) for o in outcomes if o.wrong]
    assert not wrong, wrong


READERS: dict[str, Callable[[str, bytes], object]] = {
    "cluster/collection/": decode_marks,
    "cluster/": metadata_facts,
    "wal/": wal_facts,
    "merged/": wal_facts,
    "checkpoint/": checkpoint_facts,
    "handover/": Images,
    "staged/": staged_facts,
    "state/": state_facts,
    "topics/": table_facts,
}


@pytest.mark.parametrize("kind", [k for k in Kind if k is not Kind.SEGMENT], ids=lambda k: k.value)
def test_no_flipped_bit_asks_for_a_newer_tidelog(rich: RichBucket, kind: Kind) -> None:
    """Readers check the checksum, which covers the version, before they compare the version.
    `test_segment.py` has the same for segments."""
    found = [key for key, data in rich.objects.items() if kind_of(key, data) is kind]
    key = min(found, key=lambda each: (len(rich.objects[each]), each))
    data = rich.objects[key]
    read = next(read for prefix, read in READERS.items() if key.startswith(prefix))
    read(key, data)
    named = data.find(b'"format":')
    places = {*range(min(16, len(data))), *range(max(0, len(data) - 24), len(data))}
    places |= set(range(named, named + 12)) if named >= 0 else set()
    corrupt = 0
    for place in sorted(places):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with suppress(CorruptObject):
                read(key, bytes(changed))
                continue
            corrupt += 1
    assert corrupt > 0


def test_the_bucket_is_sound_before_it_is_damaged(rich: RichBucket) -> None:
    key = min(rich.objects)
    (case, *_) = cases(rich.objects, FEW_FLIPS, 1, rich.deleted)
    unchanged = case.damage._replace(data=rich.objects[case.key])
    outcome = judged(rich, case.__class__(case.kind, case.place, case.key, unchanged))
    assert (outcome.verdict, outcome.wrong) == (Verdict.HARMLESS, []), key
