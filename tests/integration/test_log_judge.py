"""The judge of long runs finds violations, and accepts lawful histories."""

from __future__ import annotations

import pytest

from tests.integration.log_judge import (
    COMMITTED,
    Fate,
    Judge,
    Ledger,
    LogStarts,
    Place,
    Policy,
    Sent,
    Violation,
    Walk,
)

KEPT, DELETED, COMPACTED = Place("kept", 0), Place("deleted", 0), Place("compacted", 0)
POLICIES = {
    "kept": Policy(is_deleted=False, tombstone_seconds=None),
    "deleted": Policy(is_deleted=True, tombstone_seconds=None),
    "compacted": Policy(is_deleted=False, tombstone_seconds=5.0),
}
ABORTED = Fate(False)


def ledger(place: Place, *fates: Fate | None, keys: str = "abcdefgh") -> Ledger:
    """Record n was sent at n seconds under the n-th key; None stands for a marker."""
    found = Ledger()
    for offset, (fate, key) in enumerate(zip(fates, keys, strict=False)):
        if fate is not None:
            found.note(place, offset, sent(offset, key, fate))
    return found


def sent(offset: int, key: str, fate: Fate = COMMITTED) -> Sent:
    # A capital letter is a tombstone.
    value = None if key.isupper() else b"%d" % offset
    return Sent(key.lower().encode(), value, float(offset), fate)


def walked(known: Ledger, place: Place, *offsets: int, end: int, now: float = 20.0) -> Walk:
    """A walk through these records, in this order, to the end."""
    walk = Walk(place, known, is_committed_only=True)
    for offset in offsets:
        found = known.logs[place][offset]
        walk.take(offset, found.key, found.value, now)
    walk.reach(end, now)
    return walk


def judge(known: Ledger, walk: Walk, *, log_start: int = 0, asked_at: float = 30.0) -> None:
    starts = LogStarts()
    starts.note(asked_at, {walk.place: log_start})
    Judge(known, starts, POLICIES).judge(walk)


def test_markers_and_aborted_records_may_be_missing_and_nothing_else() -> None:
    known = ledger(KEPT, COMMITTED, ABORTED, None, COMMITTED)
    judge(known, walked(known, KEPT, 0, 3, end=4))
    for offsets in ((0,), (3,), ()):
        with pytest.raises(Violation, match="was not read"):
            judge(known, walked(known, KEPT, *offsets, end=4))


def test_records_behind_the_end_are_not_missing_yet() -> None:
    known = ledger(KEPT, COMMITTED, COMMITTED)
    judge(known, walked(known, KEPT, 0, end=1))


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0)])
def test_repeated_and_late_records_are_found_at_once(offsets: tuple[int, ...]) -> None:
    known = ledger(KEPT, COMMITTED, COMMITTED)
    with pytest.raises(Violation, match="came after"):
        walked(known, KEPT, *offsets, end=2)


def test_an_aborted_record_is_for_readers_of_everything_only() -> None:
    known = ledger(KEPT, ABORTED)
    with pytest.raises(Violation, match="aborted record"):
        walked(known, KEPT, 0, end=1)
    everything = Walk(KEPT, known, is_committed_only=False)
    everything.take(0, b"a", b"0", 1.0)
    judge(known, everything)


def test_a_transaction_that_is_aborted_after_it_was_read_is_found_in_the_end() -> None:
    fate = Fate()
    known = ledger(KEPT, fate)
    walk = walked(known, KEPT, 0, end=1)
    with pytest.raises(Violation, match="never sent"):
        judge(known, walk)
    fate.is_committed = False
    with pytest.raises(Violation, match="aborted record"):
        judge(known, walk)
    fate.is_committed = True
    judge(known, walk)


def test_unsent_and_changed_records_are_found() -> None:
    known = ledger(KEPT, COMMITTED)
    with pytest.raises(Violation, match="differs from the sent record"):
        Walk(KEPT, known, is_committed_only=True).take(0, b"a", b"other", 1.0)
    walk = Walk(KEPT, known, is_committed_only=True)
    walk.take(7, b"a", b"7", 1.0)
    with pytest.raises(Violation, match="never sent"):
        judge(known, walk)


def test_below_the_log_start_of_that_time_records_may_be_gone() -> None:
    known = ledger(DELETED, COMMITTED, COMMITTED, COMMITTED)
    walk = walked(known, DELETED, 2, end=3)
    judge(known, walk, log_start=2)
    with pytest.raises(Violation, match="1 was not read"):
        judge(known, walk, log_start=1)
    with pytest.raises(ValueError, match="no question"):
        judge(known, walk, log_start=2, asked_at=10.0)
    kept = ledger(KEPT, COMMITTED, COMMITTED, COMMITTED)
    with pytest.raises(Violation):
        judge(kept, walked(kept, KEPT, 2, end=3), log_start=2)


def test_log_starts_never_go_back() -> None:
    starts = LogStarts()
    starts.note(1.0, {KEPT: 5})
    with pytest.raises(Violation, match="went back"):
        starts.note(2.0, {KEPT: 4})


def test_a_later_record_of_the_same_key_supersedes_if_it_was_there_by_then() -> None:
    known = ledger(COMPACTED, *[COMMITTED] * 3, keys="aba")
    walk = walked(known, COMPACTED, 1, 2, end=3)
    judge(known, walk)
    early = walked(known, COMPACTED, 1, end=2, now=1.5)
    with pytest.raises(Violation, match="0 was not read"):
        judge(known, early)
    with pytest.raises(Violation, match="2 was not read"):
        judge(known, walked(known, COMPACTED, 0, 1, end=3))
    aborted = ledger(COMPACTED, COMMITTED, COMMITTED, ABORTED, keys="aba")
    with pytest.raises(Violation, match="0 was not read"):
        judge(aborted, walked(aborted, COMPACTED, 1, end=3))


def test_tombstones_go_when_they_have_served() -> None:
    known = ledger(COMPACTED, COMMITTED, COMMITTED, keys="Ab")
    judge(known, walked(known, COMPACTED, 1, end=2, now=5.5))
    with pytest.raises(Violation, match="0 was not read"):
        judge(known, walked(known, COMPACTED, 1, end=2, now=4.5))


def test_the_newest_record_of_each_key_is_known() -> None:
    known = ledger(COMPACTED, COMMITTED, COMMITTED, COMMITTED, ABORTED, keys="abab")
    starts = LogStarts()
    assert Judge(known, starts, POLICIES).newest(COMPACTED) == {b"a": 2, b"b": 1}
