"""The short way of a producer's next batch and the rules for all batches say the same."""

from __future__ import annotations

from itertools import accumulate, pairwise, product

from hypothesis import assume, given
from hypothesis import strategies as st

from tidelog.records.batch import SEQUENCE_MAX
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.producer_state import (
    NO_OFFSET,
    REFUSALS,
    Attempt,
    ProducerState,
    RememberedBatch,
)

EPOCHS = range(-1, 3)
ORDINALS = (NO_ORDINAL, 0, 1, 2)


@st.composite
def states(draw: st.DrawFn) -> ProducerState:
    first = draw(st.sampled_from([0, 1, 7, SEQUENCE_MAX - 3]))
    sizes = draw(st.lists(st.integers(1, 3), max_size=5))
    ends = [end % (SEQUENCE_MAX + 1) for end in accumulate(sizes, initial=first)]
    batches = tuple(
        RememberedBatch(begin, (end - 1) % (SEQUENCE_MAX + 1), 0, 0, 0)
        for begin, end in pairwise(ends)
    )
    open_from = draw(st.sampled_from([NO_OFFSET, 5]))
    return ProducerState(
        1, draw(st.sampled_from(EPOCHS)), 0, batches, draw(st.sampled_from(ORDINALS)), open_from, 0
    )


@given(states(), st.integers(0, 2), st.booleans())
def test_a_batch_that_continues_is_no_duplicate_and_breaks_no_rule(
    state: ProducerState, version: int, has_forgotten: bool
) -> None:
    for epoch, ahead, is_open, ordinal in product(EPOCHS, range(-1, 3), (False, True), ORDINALS):
        first = (state.last_sequence + ahead) % (SEQUENCE_MAX + 1)
        if state.is_continued_by(epoch, first, is_open, ordinal):
            attempt = Attempt(state, epoch, first, is_open, ordinal, version, has_forgotten)
            assert not [why for is_broken, _, why in REFUSALS if is_broken(attempt)]
            assert not [each for each in state.batches if each.first_sequence == first]


@given(states(), st.booleans())
def test_the_next_batch_of_a_known_producer_takes_the_short_way(
    state: ProducerState, is_open: bool
) -> None:
    assume(not state.is_unknown)
    first = (state.last_sequence + 1) % (SEQUENCE_MAX + 1)
    state = state._replace(transaction_first_offset=5 if is_open else NO_OFFSET)
    assert state.is_continued_by(state.epoch, first, is_open, NO_ORDINAL)
    assert not state.is_continued_by(state.epoch, first, not is_open, NO_ORDINAL)
    assert not state.is_continued_by(state.epoch + 1, first, is_open, NO_ORDINAL)
