"""Marks on runs of slots are marks on each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.collect.mark_file import decode_marks, encode_marks
from tidelog.broker.collect.marks import Marks, SlotMarks
from tidelog.identifiers import BrokerId, Epoch, Incarnation
from tidelog.wal.recover.slot_runs import runs_of

GRACE = 10.0
ME = Incarnation(BrokerId(0), Epoch(1))
KEY = "cluster/collection/0.json"

passes = st.lists(st.tuples(st.sets(st.integers(0, 30)), st.integers(1, 8)), max_size=12)


@given(passes, st.integers(0, 12))
def test_slots_are_due_when_each_would_be(looks: list[tuple[set[int], int]], dies_at: int) -> None:
    """Checked at every pass, and across a restart from marks that an earlier pass stored."""
    by_run, by_key = SlotMarks(GRACE), Marks(GRACE)
    now = 0.0
    for number, (superfluous, seconds) in enumerate(looks):
        runs = {ME: runs_of(sorted(superfluous))} if superfluous else {}
        due = by_run.update(runs, now)
        expected = by_key.update([str(slot) for slot in sorted(superfluous)], now)
        found = [slot for run in due.get(ME, []) for slot in range(run.first, run.end)]
        assert found == sorted(map(int, expected))
        assert len(by_run) == len(by_key) == len(superfluous)
        if number == dies_at:
            slots, ages = decode_marks(
                KEY, encode_marks(by_run.ages(now), {"objects": by_key.ages(now)})
            )
            by_run, by_key = SlotMarks(GRACE), Marks(GRACE)
            by_run.restore(slots, now)
            by_key.restore(ages["objects"], now)
        now += seconds


@given(passes)
def test_the_number_of_marks_is_bounded_by_gaps_and_passes(
    looks: list[tuple[set[int], int]],
) -> None:
    """Memory does not grow with the number of slots."""
    marks = SlotMarks(GRACE)
    gaps = 0
    for number, (superfluous, _) in enumerate(looks):
        runs = runs_of(sorted(superfluous))
        gaps += len(runs)
        marks.update({ME: runs}, float(number))
        assert len(marks.ages(0.0).get(ME, [])) <= 2 * gaps
