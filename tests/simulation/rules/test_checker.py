"""Each rule of the checker finds a history that breaks it, and accepts one that does not."""

from __future__ import annotations

import pytest

from tests.simulation.rules.checker import check
from tests.simulation.rules.history import (
    GroupAdvance,
    History,
    Isolation,
    Key,
    Operation,
    Outcome,
    Poll,
    Send,
    StoredBatch,
)

A = Key("a", 0)
B = Key("b", 0)


class Story:
    """Writes a history by hand, one operation after the other."""

    def __init__(self) -> None:
        self.history = History()

    def send(
        self,
        *sends: tuple[Key, str, int | None],
        by: str = "producer",
        outcome: Outcome = Outcome.OK,
        transaction: bool = False,
    ) -> Operation:
        operation = self.history.invoke(
            by,
            "transaction" if transaction else "send",
            [Send(key, value, offset) for key, value, offset in sends],
        )
        self.complete(operation, outcome)
        return operation

    def poll(
        self,
        *records: tuple[Key, int, str],
        by: str = "consumer",
        final: bool = False,
        isolation: Isolation = "read_committed",
        ranges: dict[Key, tuple[int, int]] | None = None,
        watermarks: dict[Key, int] | None = None,
    ) -> Operation:
        operation = self.history.invoke(by, "poll", final=final)
        operation.polls = polls_of(records, isolation, ranges or {}, watermarks or {})
        self.history.ok(operation)
        return operation

    def complete(self, operation: Operation, outcome: Outcome) -> None:
        if outcome is Outcome.OK:
            self.history.ok(operation)
        elif outcome is Outcome.FAIL:
            self.history.fail(operation, "refused")
        elif outcome is Outcome.UNKNOWN:
            self.history.unknown(operation, "timed out")

    def names(self) -> set[str]:
        return check(self.history).names()


def polls_of(
    records: tuple[tuple[Key, int, str], ...],
    isolation: Isolation,
    ranges: dict[Key, tuple[int, int]],
    watermarks: dict[Key, int],
) -> list[Poll]:
    """One poll for each key. Without a range it covers only its records."""
    polls = []
    for key in dict.fromkeys([key for key, _, _ in records] + list(ranges) + list(watermarks)):
        of_key = [(offset, value) for one, offset, value in records if one == key]
        start, end = ranges.get(key, (0, 0))
        polls.append(Poll(key, start, end, of_key, isolation, watermarks.get(key)))
    return polls


def test_a_good_history_has_no_anomaly() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.send((A, "y", 1), (A, "z", 2))
    story.send((A, "gone", None), outcome=Outcome.UNKNOWN)
    story.send((A, "landed", None), outcome=Outcome.UNKNOWN)
    story.send((A, "refused", None), outcome=Outcome.FAIL)
    story.poll((A, 0, "x"), (A, 1, "y"), ranges={A: (0, 2)}, watermarks={A: 3})
    story.poll((A, 2, "z"), (A, 3, "landed"), ranges={A: (2, 4)}, watermarks={A: 4})
    story.history.assign("consumer")
    story.poll((A, 0, "x"), ranges={A: (0, 1)})
    everything = ((A, 0, "x"), (A, 1, "y"), (A, 2, "z"), (A, 3, "landed"))
    story.poll(*everything, by="final", final=True, ranges={A: (0, 4)})
    story.history.batches = [
        StoredBatch(A, 0, 0, 7, 0, 0, 1),
        StoredBatch(A, 1, 2, 7, 0, 1, 2),
        StoredBatch(A, 3, 3, -1, -1, -1, 1),
    ]
    assert str(check(story.history)) == ""


def test_good_transactions_have_no_anomaly() -> None:
    story = Story()
    story.send((A, "x", 0), (B, "y", 0), transaction=True)
    story.send((A, "aborted", 2), (B, "too", 2), transaction=True, outcome=Outcome.FAIL)
    story.send((A, "unknown", 4), (B, "and so", 4), transaction=True, outcome=Outcome.UNKNOWN)
    story.poll((A, 0, "x"), ranges={A: (0, 6)})
    story.poll((A, 0, "x"), (A, 2, "aborted"), by="dirty", isolation="read_uncommitted")
    story.poll((A, 0, "x"), (B, 0, "y"), by="f", final=True, ranges={A: (0, 6), B: (0, 6)})
    assert str(check(story.history)) == ""


def test_phantom() -> None:
    story = Story()
    story.poll((A, 0, "never written"))
    assert story.names() == {"phantom"}


def test_misplaced() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.poll((B, 0, "x"))
    assert "misplaced" in story.names()


def test_future_read() -> None:
    story = Story()
    story.poll((A, 0, "x"))
    story.send((A, "x", 0))
    assert "future-read" in story.names()


def test_inconsistent_offsets() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.send((A, "y", 0), by="other")
    assert story.names() == {"inconsistent-offsets"}


def test_inconsistent_offsets_between_readers() -> None:
    story = Story()
    story.send((A, "x", None), outcome=Outcome.UNKNOWN)
    story.send((A, "y", None), outcome=Outcome.UNKNOWN)
    story.poll((A, 0, "x"), by="one")
    story.poll((A, 0, "y"), by="two")
    assert story.names() == {"inconsistent-offsets"}


def test_duplicate() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.poll((A, 0, "x"), (A, 1, "x"))
    assert story.names() == {"duplicate"}


def test_a_record_that_moved_since_it_was_acknowledged_is_a_duplicate() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.poll((A, 5, "x"))
    assert story.names() == {"duplicate"}


def test_g1a_of_a_refused_send() -> None:
    story = Story()
    story.send((A, "x", None), outcome=Outcome.FAIL)
    story.poll((A, 0, "x"), isolation="read_uncommitted")
    assert story.names() == {"G1a"}


def test_g1a_of_an_aborted_transaction() -> None:
    story = Story()
    story.send((A, "x", None), outcome=Outcome.FAIL, transaction=True)
    story.poll((A, 0, "x"))
    assert story.names() == {"G1a"}


def test_g1b_within_the_range_that_was_read() -> None:
    story = Story()
    story.send((A, "x", 0), (B, "y", 0), transaction=True)
    story.poll((A, 0, "x"), ranges={A: (0, 1)})
    story.poll(ranges={B: (0, 1)})
    assert "G1b" in story.names()


def test_no_g1b_where_the_reader_has_not_come_so_far() -> None:
    story = Story()
    story.send((A, "x", 0), (B, "y", 5), transaction=True)
    story.poll((A, 0, "x"), ranges={A: (0, 1), B: (0, 5)})
    assert story.names() == set()


def test_g1b_of_an_unknown_commit_in_the_final_read() -> None:
    story = Story()
    story.send((A, "x", None), (B, "y", None), transaction=True, outcome=Outcome.UNKNOWN)
    story.poll((A, 0, "x"), final=True, ranges={A: (0, 1), B: (0, 3)})
    assert story.names() == {"G1b"}


def test_precommitted_read() -> None:
    story = Story()
    operation = story.history.invoke("worker", "transaction", [Send(A, "x", 0)])
    operation.polls = [Poll(A, 0, 1, [(0, "x")])]
    story.history.ok(operation)
    assert story.names() == {"precommitted-read"}


def test_lost_write() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.send((A, "y", 1))
    story.poll((A, 1, "y"))
    assert "lost-write" in story.names()


def test_lost_write_of_an_unknown_transaction_that_a_reader_proved() -> None:
    story = Story()
    story.send((A, "x", 0), (A, "y", 1), transaction=True, outcome=Outcome.UNKNOWN)
    story.poll((A, 1, "y"))
    assert "lost-write" in story.names()


def test_unseen() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.send((A, "y", 1))
    story.poll((A, 0, "x"), final=True, ranges={A: (0, 1)})
    assert story.names() == {"unseen"}


def test_poll_skip() -> None:
    story = Story()
    for offset, value in enumerate("xyz"):
        story.send((A, value, offset))
    story.poll((A, 0, "x"))
    story.poll((A, 2, "z"))
    story.poll((A, 1, "y"), by="other")
    assert story.names() == {"poll-skip"}


def test_poll_skip_at_the_beginning_of_the_covered_range() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.poll(ranges={A: (0, 1)})
    story.poll((A, 0, "x"), by="other")
    assert story.names() == {"poll-skip"}


def test_nonmonotonic_poll() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.send((A, "y", 1))
    story.poll((A, 0, "x"), (A, 1, "y"))
    story.poll((A, 1, "y"))
    assert story.names() == {"nonmonotonic-poll"}


def test_internal_poll_skip_and_nonmonotonic_poll() -> None:
    story = Story()
    for offset, value in enumerate("xyz"):
        story.send((A, value, offset))
    story.poll((A, 0, "x"), (A, 2, "z"), (A, 1, "y"))
    assert story.names() == {"int-poll-skip", "int-nonmonotonic-poll"}


def test_an_assignment_resets_the_position() -> None:
    story = Story()
    for offset, value in enumerate("xyz"):
        story.send((A, value, offset))
    story.poll((A, 0, "x"), (A, 1, "y"), (A, 2, "z"))
    story.history.assign("consumer")
    story.poll((A, 0, "x"))
    story.history.assign("consumer")
    story.poll((A, 2, "z"))
    assert story.names() == set()


def test_nonmonotonic_send() -> None:
    story = Story()
    story.send((A, "x", 1))
    story.send((A, "y", 0))
    assert story.names() == {"nonmonotonic-send"}


def test_internal_nonmonotonic_send() -> None:
    story = Story()
    story.send((A, "x", 1), (A, "y", 0))
    assert story.names() == {"int-nonmonotonic-send"}


def test_g0_of_a_write_that_lies_before_one_acknowledged_earlier() -> None:
    story = Story()
    story.send((A, "1", 5), by="one", transaction=True)
    story.send((A, "2", 3), by="two", transaction=True)
    assert story.names() == {"G0"}


def test_no_g0_where_two_transactions_run_at_the_same_time() -> None:
    story = Story()
    operations = [
        story.history.invoke("one", "transaction", [Send(A, "1", 0), Send(B, "1b", 1)]),
        story.history.invoke("two", "transaction", [Send(A, "2", 1), Send(B, "2b", 0)]),
    ]
    for operation in operations:
        story.history.ok(operation)
    assert story.names() == set()


def test_a_watermark_below_an_acknowledged_record_is_stale() -> None:
    story = Story()
    story.send((A, "x", 0))
    story.poll(watermarks={A: 0})
    assert story.names() == {"stale-watermark"}


def test_a_watermark_below_that_of_another_reader_is_stale() -> None:
    story = Story()
    story.poll(watermarks={A: 7}, by="one")
    story.poll(watermarks={A: 6}, by="two")
    assert story.names() == {"stale-watermark"}


@pytest.mark.parametrize(
    ("host", "began_at", "anomalies"),
    [
        ("a", 105.0, set()),
        ("b", 105.0, {"stale-watermark"}),
        ("a", 99.0, {"stale-watermark"}),
        ("a", 110.0, {"stale-watermark"}),
    ],
)
def test_a_process_that_was_taken_for_dead_may_show_an_old_watermark_for_the_time_of_its_lease(
    host: str, began_at: float, anomalies: set[str]
) -> None:
    story = Story()
    story.history.taken_for_dead = {("a", 1): 99.0}
    story.history.fenced_at = {("a", 1): 100.0}
    story.history.now = lambda: began_at
    story.send((A, "x", 0))
    story.poll(watermarks={A: 0}).polls[0].host = host
    assert story.names() == anomalies


@pytest.mark.parametrize(
    ("host", "at", "may_be_old"), [("a", 109.0, True), ("a", 109.1, False), ("b", 105.0, False)]
)
def test_a_host_may_refuse_by_an_old_state_for_the_time_of_its_lease(
    host: str, at: float, may_be_old: bool
) -> None:
    history = Story().history
    history.taken_for_dead = {("a", 1): 99.0}
    history.fenced_at = {("a", 1): 100.0}
    assert history.may_be_old(host, at, at) is may_be_old


@pytest.mark.parametrize(
    ("fenced_at", "at", "may_be_old"),
    [
        (104.0, 103.9, False),
        (104.0, 104.0, True),
        (104.0, 113.0, True),
        (104.0, 113.1, False),
        (99.0, 104.0, False),
        (None, 104.0, False),
    ],
)
def test_what_a_process_knows_is_old_only_when_it_was_fenced(
    fenced_at: float | None, at: float, may_be_old: bool
) -> None:
    """Another process took it for dead, and fenced it later, before that for a good reason, or
    never."""
    history = Story().history
    history.taken_for_dead = {("a", 1): 100.0}
    history.fenced_at = {("a", 2): at} | ({} if fenced_at is None else {("a", 1): fenced_at})
    assert history.may_be_old("a", at, at) is may_be_old


def test_a_watermark_asked_for_earlier_may_be_older() -> None:
    story = Story()
    slow = story.history.invoke("slow", "poll")
    story.send((A, "x", 0))
    slow.polls = [Poll(A, 0, 0, [], high_watermark=0)]
    story.history.ok(slow)
    assert story.names() == set()


def test_an_input_that_two_transactions_consumed() -> None:
    story = Story()
    for start, end in ((0, 3), (2, 5)):
        operation = story.history.invoke("worker", "transaction")
        operation.advances = [GroupAdvance("group", A, start, end)]
        story.history.ok(operation)
    assert story.names() == {"consumed-twice"}


def test_g1c_of_two_transactions_that_read_each_other() -> None:
    story = Story()
    first = story.history.invoke("one", "transaction", [Send(A, "x", 0)])
    second = story.history.invoke("two", "transaction", [Send(B, "y", 0)])
    first.polls = [Poll(B, 0, 1, [(0, "y")])]
    second.polls = [Poll(A, 0, 1, [(0, "x")])]
    story.history.ok(first)
    story.history.ok(second)
    assert story.names() == {"G1c"}


def test_g1c_through_real_time() -> None:
    story = Story()
    writer = story.history.invoke("writer", "transaction", [Send(A, "x", 0)])
    early = story.poll((A, 0, "x"), by="early")
    other = story.history.invoke("other", "transaction", [Send(B, "y", 0)])
    writer.polls = [Poll(B, 0, 1, [(0, "y")])]
    story.history.ok(other)
    story.history.ok(writer)
    report = check(story.history)
    assert report.names() == {"G1c"}
    assert f"poll {early.number}" in str(report)


def test_a_sequence_that_lies_in_the_log_twice() -> None:
    story = Story()
    story.history.batches = [
        StoredBatch(A, 0, 2, 7, 0, 0, 3),
        StoredBatch(A, 3, 5, 7, 0, 0, 3),
    ]
    assert story.names() == {"sequence-twice"}


def test_adopted_batches_have_no_sequence() -> None:
    story = Story()
    story.history.batches = [
        StoredBatch(A, 0, 2, 7, 0, -1, 3),
        StoredBatch(A, 3, 5, 7, 0, -1, 3),
    ]
    assert story.names() == set()


def test_a_sequence_that_is_missing() -> None:
    story = Story()
    story.history.batches = [
        StoredBatch(A, 0, 2, 7, 0, 0, 3),
        StoredBatch(B, 0, 2, 7, 0, 0, 3),
        StoredBatch(A, 3, 3, 7, 0, 4, 1),
    ]
    assert story.names() == {"sequence-hole"}


def test_a_hole_between_offsets() -> None:
    story = Story()
    story.history.batches = [
        StoredBatch(A, 0, 2, -1, -1, -1, 3),
        StoredBatch(A, 4, 4, -1, -1, -1, 1),
    ]
    assert story.names() == {"offset-gap"}
    assert check(story.history, dense=False).valid


def test_violations_during_the_run_are_reported() -> None:
    story = Story()
    story.history.violate("a record's checksum is wrong")
    assert story.names() == {"violation"}


def test_a_report_spells_out_a_few_of_many() -> None:
    story = Story()
    for number in range(20):
        story.poll((A, number, f"phantom {number}"), by=f"reader {number}")
    text = str(check(story.history))
    assert text.count("phantom:") == 6
    assert "phantom: 15 more" in text


def told_stable(history: History, stable: int, end: int) -> None:
    operation = history.invoke("reader", "poll")
    operation.polls = [Poll(A, 0, 0, [], high_watermark=end, last_stable_offset=stable)]
    history.ok(operation)


def test_a_stable_offset_above_the_end() -> None:
    history = History()
    told_stable(history, 4, 3)
    assert check(history).names() == {"unstable-offset"}


def test_a_stable_offset_that_goes_back() -> None:
    history = History()
    told_stable(history, 5, 9)
    told_stable(history, 4, 9)
    assert check(history).names() == {"stale-stable-offset"}
