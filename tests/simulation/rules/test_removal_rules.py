"""Each rule on removals finds a history that breaks it, and accepts one that does not."""

from __future__ import annotations

import pytest

from tests.simulation.policies import TopicPolicy
from tests.simulation.rules.checker import check
from tests.simulation.rules.history import GroupAdvance, History, Key, Operation, Poll, Send, Trim

AGED, LATEST, KEPT = Key("aged", 0), Key("latest", 0), Key("kept", 0)
POLICIES = {
    "aged": TopicPolicy(retention_ms=20_000),
    "sized": TopicPolicy(retention_bytes=1000),
    "trimmed": TopicPolicy(is_trimmed=True),
    "latest": TopicPolicy(compacts=True, delete_retention_ms=20_000, max_compaction_lag_ms=1000),
}


class Story:
    """Writes a history by hand. Time passes only when the story sets it."""

    def __init__(self) -> None:
        self.history = History()
        self.history.policies = POLICIES
        self.history.now = lambda: self.seconds
        self.seconds = 0.0

    def send(self, *sends: tuple[Key, int, str], transaction: bool = False) -> Operation:
        operation = self.history.invoke(
            "producer",
            "transaction" if transaction else "send",
            [Send(key, value, offset) for key, offset, value in sends],
        )
        self.history.ok(operation)
        return operation

    def poll(
        self,
        key: Key,
        start: int,
        end: int,
        *records: tuple[int, str],
        log_start: int = 0,
        stable: int | None = None,
        final: bool = False,
    ) -> Operation:
        operation = self.history.invoke("consumer", "poll", final=final)
        poll = Poll(key, start, end, list(records), log_start=log_start)
        poll.last_stable_offset, poll.high_watermark = stable, stable
        operation.polls = [poll]
        self.history.ok(operation)
        return operation

    def view(self, *polls: Poll, final: bool = False) -> None:
        self.history.assign("viewer")
        operation = self.history.invoke("viewer", "view", final=final)
        operation.is_atomic = True
        operation.polls = list(polls)
        self.history.ok(operation)

    def names(self) -> set[str]:
        return check(self.history).names()


def test_old_records_may_go_and_young_ones_may_not() -> None:
    story = Story()
    story.send((AGED, 0, "a"), (AGED, 1, "b"))
    story.seconds = 30.0
    story.send((AGED, 2, "c"))
    story.poll(AGED, 2, 3, (2, "c"), log_start=2, stable=3, final=True)
    assert story.names() == set()
    story.poll(AGED, 3, 3, log_start=3, stable=3, final=True)
    assert story.names() == {"removed-too-early"}


def test_young_aborted_records_go_with_earlier_records() -> None:
    story = Story()
    story.send((AGED, 0, "a"))
    story.seconds = 30.0
    aborted = story.history.invoke("one", "transaction", [Send(AGED, "b", 1)])
    story.history.fail(aborted, "aborted")
    story.poll(AGED, 3, 3, log_start=3, stable=3, final=True)
    assert story.names() == set()
    story.send((AGED, 3, "c"))
    story.poll(AGED, 4, 4, log_start=4, stable=4, final=True)
    assert story.names() == {"removed-too-early"}


def test_inputs_may_be_consumed_by_a_commit_whose_outputs_are_gone() -> None:
    """The outputs prove a commit whose answer was lost, for as long as they are in the log."""

    def story(*outputs: str, outcome: str = "unknown") -> Story:
        found = Story()
        for start, end in ((0, 2), (2, 5), (5, 6)):
            lost = start == 2
            sends = [Send(AGED, each, number) for number, each in enumerate(outputs) if lost]
            operation = found.history.invoke("one", "transaction", sends)
            operation.advances = [GroupAdvance("group", KEPT, start, end)]
            if not lost:
                found.history.ok(operation)
            elif outcome == "unknown":
                found.history.unknown(operation, "no answer")
            else:
                found.history.fail(operation, "aborted")
        found.seconds = 30.0
        return found

    def names(found: Story, log_start: int) -> set[str]:
        found.poll(AGED, log_start, 2, log_start=log_start, stable=2, final=True)
        return found.names()

    assert names(story("a", "b"), 2) == set()
    assert names(story("a", "b"), 1) == {"never-consumed"}
    assert names(story("a", "b", outcome="aborted"), 2) == {"never-consumed"}
    assert names(story(), 2) == {"never-consumed"}


def test_a_removal_from_a_topic_without_limits_is_found() -> None:
    story = Story()
    story.send((KEPT, 0, "a"), (KEPT, 1, "b"))
    story.seconds = 1000.0
    story.poll(KEPT, 1, 2, (1, "b"), log_start=1)
    assert "removed-too-early" in story.names()


def test_retention_by_size_leaves_a_record() -> None:
    story, key = Story(), Key("sized", 0)
    story.send((key, 0, "a"), (key, 1, "b"))
    story.poll(key, 1, 2, (1, "b"), log_start=1, stable=2)
    assert story.names() == set()
    story.poll(key, 2, 2, log_start=2, stable=2)
    assert story.names() == {"removed-too-much"}


def test_exactly_the_marked_records_are_deleted() -> None:
    story, key = Story(), Key("trimmed", 0)
    story.send((key, 0, "a"), (key, 1, "b"), (key, 2, "c"))
    trim = story.history.invoke("trimmer", "trim")
    trim.trim = Trim(key, 2)
    story.history.unknown(trim, "timed out")
    story.poll(key, 2, 3, (2, "c"), log_start=2)
    assert story.names() == set()
    story.poll(key, 3, 3, log_start=3)
    assert story.names() == {"removed-too-early"}


def test_a_log_start_does_not_go_back() -> None:
    story = Story()
    story.send((AGED, 0, "a"), (AGED, 1, "b"))
    story.seconds = 30.0
    story.poll(AGED, 1, 2, (1, "b"), log_start=1)
    story.history.assign("consumer")
    story.poll(AGED, 0, 2, (0, "a"), (1, "b"), log_start=0)
    assert story.names() == {"log-start-back"}


def test_a_view_may_be_ahead_of_brokers_and_not_behind_known_records() -> None:
    story = Story()
    story.send((KEPT, 0, "a"))
    sent = story.history.invoke("producer", "send", [Send(KEPT, "b")])
    story.view(Poll(KEPT, 0, 2, [(0, "a"), (1, "b")], high_watermark=2, last_stable_offset=2))
    story.poll(KEPT, 0, 1, (0, "a"), stable=1)
    story.history.ok(sent)
    assert story.names() == set()
    story.view(Poll(KEPT, 0, 1, [(0, "a")], high_watermark=1, last_stable_offset=1))
    assert story.names() == {"stale-watermark", "stale-stable-offset"}


def test_a_log_does_not_begin_behind_an_undecided_record() -> None:
    story = Story()
    story.send((AGED, 0, "a"))
    story.seconds = 30.0
    story.poll(AGED, 1, 1, log_start=1, stable=0)
    assert "log-start-unstable" in story.names()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_log_does_not_begin_behind_a_record_whose_transaction_is_open(is_open: bool) -> None:
    """This holds even if the last stable offset does not show it: that offset is never below the
    log's start."""
    story = Story()
    writer = story.history.invoke("writer", "transaction", [Send(AGED, "a", 0)])
    story.seconds = 30.0
    if not is_open:
        story.history.ends(writer)
    story.poll(AGED, 1, 1, log_start=1, stable=1)
    if is_open:
        story.history.ends(writer)
    story.history.ok(writer)
    assert story.names() == ({"log-start-unstable"} if is_open else set())


def test_a_hole_above_the_log_start_is_noticed() -> None:
    story = Story()
    story.send((AGED, 0, "a"), (AGED, 1, "b"), (AGED, 2, "c"))
    story.seconds = 30.0
    story.poll(AGED, 0, 3, (0, "a"), (2, "c"))
    story.history.assign("consumer")
    story.poll(AGED, 0, 3, (0, "a"), (1, "b"), (2, "c"))
    assert "poll-skip" in story.names()


def test_compaction_takes_records_with_a_later_record_of_their_key() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"), (LATEST, 1, "b#k2"), (LATEST, 2, "c#k1"))
    story.poll(LATEST, 0, 3, (0, "a#k1"), (1, "b#k2"), (2, "c#k1"))
    story.history.assign("consumer")
    story.poll(LATEST, 0, 3, (1, "b#k2"), (2, "c#k1"), final=True)
    assert story.names() == set()


def test_compaction_does_not_take_the_latest_record_of_a_key() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"), (LATEST, 1, "b#k2"), (LATEST, 2, "c#k1"))
    story.poll(LATEST, 0, 3, (0, "a#k1"), (1, "b#k2"), final=True)
    assert story.names() >= {"poll-skip", "unseen"}


def test_compaction_removes_nothing_for_an_unsent_record() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"))
    story.poll(LATEST, 0, 1)
    story.send((LATEST, 1, "b#k1"))
    story.history.assign("consumer")
    story.poll(LATEST, 0, 2, (1, "b#k1"), final=True)
    assert story.names() == {"poll-skip"}


def test_compaction_takes_nothing_for_a_record_that_was_aborted() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"))
    aborted = story.history.invoke("one", "transaction", [Send(LATEST, "b#k1", 1)])
    story.history.fail(aborted, "aborted")
    story.poll(LATEST, 0, 2, final=True)
    assert story.names() >= {"poll-skip", "unseen"}


def test_a_tombstone_stays_for_a_while() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1!"))
    story.seconds = 5.0
    story.poll(LATEST, 0, 1)
    assert story.names() == {"poll-skip"}
    story = Story()
    story.send((LATEST, 0, "a#k1!"))
    story.seconds = 30.0
    story.poll(LATEST, 0, 1, final=True)
    assert story.names() == set()


def test_a_tombstone_does_not_go_before_the_record_it_deletes() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"), (LATEST, 1, "b#k1!"))
    story.seconds = 60.0
    story.poll(LATEST, 0, 2, (0, "a#k1"))
    assert story.names() == {"resurrected"}


def test_compaction_that_must_be_done_is_done_at_the_end() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"), (LATEST, 1, "b#k1"))
    story.view(Poll(LATEST, 0, 2, [(0, "a#k1"), (1, "b#k1")]), final=True)
    assert story.names() == {"not-compacted"}


def test_an_atomic_view_shows_no_half_of_a_transaction() -> None:
    story = Story()
    story.send((AGED, 0, "a"), (KEPT, 0, "b"), (LATEST, 0, "c#k1"), transaction=True)
    story.view(
        Poll(AGED, 0, 1, [(0, "a")]),
        Poll(KEPT, 0, 1, [(0, "b")]),
        Poll(LATEST, 0, 0, [(0, "c#k1")]),
    )
    assert story.names() == set()
    # The record is above the last stable offset, so that no other rule applies.
    story.view(Poll(AGED, 0, 1, [(0, "a")]), Poll(KEPT, 0, 0, []))
    assert story.names() == {"half-transaction"}


def test_an_atomic_view_shows_transactions_committed_before_it_was_taken() -> None:
    story = Story()
    story.send((AGED, 0, "a"))
    story.send((KEPT, 0, "b"), transaction=True)
    story.view(Poll(AGED, 0, 1, [(0, "a")]), Poll(KEPT, 0, 1, []))
    assert story.names() == {"poll-skip"}


def test_an_atomic_view_need_not_show_transactions_committed_while_it_is_taken() -> None:
    story = Story()
    late = story.history.invoke("other", "transaction", [Send(KEPT, "b", 0)])
    story.send((AGED, 0, "a"))
    view = story.history.invoke("viewer", "view")
    view.is_atomic = True
    view.polls = [Poll(AGED, 0, 1, [(0, "a")]), Poll(KEPT, 0, 1, [])]
    story.history.ok(late)
    story.history.ok(view)
    assert story.names() == set()
    story.view(Poll(AGED, 0, 1, []), Poll(KEPT, 0, 1, [(0, "b")]))
    assert story.names() == {"poll-skip"}


def test_an_atomic_view_need_not_show_a_tombstone_that_is_not_decided() -> None:
    story = Story()
    story.send((LATEST, 0, "a#k1"))
    late = story.history.invoke("other", "transaction", [Send(LATEST, "b#k1!", 1)])
    story.view(Poll(LATEST, 0, 2, [(0, "a#k1")]))
    story.history.ok(late)
    assert story.names() == set()


def test_an_atomic_view_may_lack_removed_records() -> None:
    story = Story()
    story.send((AGED, 0, "a"), (KEPT, 0, "b"), (LATEST, 0, "c#k1"), transaction=True)
    story.send((LATEST, 1, "d#k1"))
    story.seconds = 30.0
    story.view(
        Poll(AGED, 1, 1, [], log_start=1),
        Poll(KEPT, 0, 1, [(0, "b")]),
        Poll(LATEST, 0, 2, [(1, "d#k1")]),
    )
    assert story.names() == set()
