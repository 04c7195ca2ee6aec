"""Each rule on transactions finds a history that breaks it, and accepts one that does not."""

from __future__ import annotations

import pytest

from tests.simulation.rules.history import (
    GroupAdvance,
    History,
    Identity,
    Key,
    Operation,
    Outcome,
    Poll,
    Send,
    StoredBatch,
    StoredTransaction,
)
from tests.simulation.rules.transaction_rules import EPOCH_LAST, anomalies

A, B = Key("a", 0), Key("b", 0)
PID, OTHER = 7, 8


class Story:
    """Writes a history by hand: the answers of clients, and the contents of the bucket at the
    end."""

    def __init__(self) -> None:
        self.history = History()
        self._ends = dict.fromkeys((A, B), 0)

    def identity(
        self, instance: str, epoch: int, producer: int = PID, *, own_epochs: bool = True
    ) -> None:
        operation = self.history.invoke(instance, "identity")
        operation.identity = Identity("txn", instance, producer, epoch, own_epochs)
        self.history.ok(operation)

    def transaction(self, *sends: tuple[Key, str], outcome: Outcome = Outcome.OK) -> Operation:
        operation = self.history.invoke("one", "transaction", [Send(*send) for send in sends])
        if outcome is Outcome.OK:
            self.history.ok(operation)
        elif outcome is Outcome.FAIL:
            self.history.fail(operation, "aborted")
        else:
            self.history.unknown(operation, "no answer")
        return operation

    def consumed(self, start: int, end: int) -> None:
        self.transaction().advances = [GroupAdvance("group", A, start, end)]

    def stored(self, *states: str, epoch: int = 1) -> None:
        self.history.transactions += [StoredTransaction("txn", s, PID, epoch) for s in states]

    def data(self, key: Key, *values: str, epoch: int = 0, producer: int = PID) -> None:
        self._append(key, producer, epoch, values)

    def marker(self, key: Key, epoch: int = 1, producer: int = PID, *, commits: bool) -> None:
        self._append(key, producer, epoch, (), commits=commits)

    def _append(
        self,
        key: Key,
        producer: int,
        epoch: int,
        values: tuple[str, ...],
        commits: bool | None = None,
    ) -> None:
        base, count = self._ends[key], max(len(values), 1)
        self._ends[key] += count
        self.history.batches.append(
            StoredBatch(
                key,
                base,
                base + count - 1,
                producer,
                epoch,
                0,
                count,
                control=commits is not None,
                transactional=True,
                commits=commits is True,
                values=values,
            )
        )

    def shown(self, key: Key, *values: str) -> None:
        """The records that a read_committed reader is shown when all faults are over."""
        operation = self.history.invoke("reader", "poll", final=True)
        operation.polls = [Poll(key, 0, self._ends[key], list(enumerate(values)))]
        self.history.ok(operation)

    def anomalies(self) -> list[str]:
        committed = [one for one in self.history.operations if one.outcome is Outcome.OK]
        return [each.name for each in anomalies(self.history, committed, [])]


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_good_history_has_no_anomaly(story: Story) -> None:
    story.identity("one", 0)
    story.transaction((A, "x"), (B, "y"))
    story.data(A, "x")
    story.data(B, "y")
    story.stored("Ongoing", "PrepareCommit", "CompleteCommit")
    story.marker(A, commits=True)
    story.marker(B, commits=True)
    story.transaction((A, "z"), outcome=Outcome.FAIL)
    story.data(A, "z", epoch=1)
    story.stored("Ongoing", "PrepareAbort", "CompleteAbort", epoch=2)
    story.marker(A, 2, commits=False)
    story.identity("two", 3)
    story.consumed(0, 5)
    story.consumed(5, 6)
    story.shown(A, "x")
    story.shown(B, "y")
    assert story.anomalies() == []


# 5. Identities.


def test_an_epoch_that_two_instances_were_given(story: Story) -> None:
    story.identity("one", 3)
    story.identity("two", 3)
    assert "identity-twice" in story.anomalies()


def test_an_epoch_that_goes_back(story: Story) -> None:
    story.identity("one", 3)
    story.identity("two", 2)
    assert story.anomalies() == ["epoch-back"]


def test_another_producer_id_before_the_epochs_are_used_up(story: Story) -> None:
    story.identity("one", 3)
    story.identity("two", 0, OTHER)
    assert story.anomalies() == ["epoch-back"]


def test_another_producer_id_behind_the_last_epoch(story: Story) -> None:
    story.identity("one", EPOCH_LAST)
    story.identity("two", 0, OTHER)
    assert story.anomalies() == []


# 6. Transitions.


@pytest.mark.parametrize(
    "states",
    [
        ("Ongoing", "CompleteCommit"),
        ("Empty", "PrepareCommit"),
        ("Ongoing", "PrepareCommit", "PrepareAbort"),
        ("Ongoing", "PrepareCommit", "CompleteAbort"),
        ("Ongoing", "PrepareAbort", "Empty"),
        ("Ongoing", "Dead"),
    ],
)
def test_a_transition_that_the_table_does_not_have(story: Story, states: tuple[str, ...]) -> None:
    story.stored(*states)
    assert "illegal-transition" in story.anomalies()


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_an_undecided_or_incomplete_transaction_at_the_end(story: Story, state: str) -> None:
    story.stored(state)
    assert story.anomalies() == ["undecided"]


# 11. Inputs.


def test_an_input_that_two_transactions_consumed(story: Story) -> None:
    story.consumed(0, 5)
    story.consumed(4, 8)
    assert story.anomalies() == ["consumed-twice"]


def test_an_input_that_no_consumer_read(story: Story) -> None:
    story.consumed(0, 5)
    story.consumed(6, 8)
    assert story.anomalies() == ["never-consumed"]


# 7 to 9. Markers and outcomes.


def test_a_marker_that_is_there_twice(story: Story) -> None:
    story.identity("one", 0)
    story.data(A, "x")
    story.marker(A, commits=True)
    story.marker(A, commits=True)
    story.shown(A, "x")
    assert story.anomalies() == ["marker-twice"]


def test_under_the_first_version_epochs_do_not_tell_markers_apart(story: Story) -> None:
    story.identity("one", 1, own_epochs=False)
    story.data(A, "x", epoch=1)
    story.marker(A, commits=True)
    story.data(A, "y", epoch=1)
    story.marker(A, commits=True)
    story.shown(A, "x", "y")
    assert story.anomalies() == []


def test_data_that_comes_behind_its_marker(story: Story) -> None:
    story.identity("one", 0)
    story.marker(A, commits=False)
    story.data(A, "late")
    assert set(story.anomalies()) == {"zombie-write", "hanging-transaction"}


def test_a_transaction_without_a_marker(story: Story) -> None:
    story.data(A, "x")
    assert story.anomalies() == ["hanging-transaction"]


def test_a_marker_against_the_decision_is_found(story: Story) -> None:
    story.identity("one", 0)
    story.stored("Ongoing", "PrepareCommit", "CompleteCommit")
    story.data(A, "x")
    story.marker(A, commits=False)
    assert story.anomalies() == ["marker-against-decision"]


def test_a_transaction_with_both_outcomes(story: Story) -> None:
    story.transaction((A, "x"), (B, "y"), outcome=Outcome.UNKNOWN)
    story.data(A, "x")
    story.data(B, "y")
    story.marker(A, commits=True)
    story.marker(B, commits=False)
    story.shown(A, "x")
    assert story.anomalies() == ["split-outcome"]


def test_two_transactions_with_one_marker(story: Story) -> None:
    story.transaction((A, "x"))
    story.transaction((A, "y"))
    story.data(A, "x")
    story.data(A, "y")
    story.marker(A, commits=True)
    story.shown(A, "x", "y")
    assert story.anomalies() == ["mixed-transactions"]


def test_a_marker_in_the_midst_of_a_transaction(story: Story) -> None:
    story.transaction((A, "x"), (A, "y"))
    story.data(A, "x")
    story.marker(A, commits=True)
    story.data(A, "y", epoch=1)
    story.marker(A, 2, commits=True)
    story.shown(A, "x", "y")
    assert story.anomalies() == ["split-transaction"]


def test_a_commit_that_was_confirmed_and_ended_with_an_abort(story: Story) -> None:
    story.transaction((A, "x"))
    story.data(A, "x")
    story.marker(A, commits=False)
    assert story.anomalies() == ["lost-commit"]


def test_an_abort_that_was_confirmed_and_ended_with_a_commit(story: Story) -> None:
    story.transaction((A, "x"), outcome=Outcome.FAIL)
    story.data(A, "x")
    story.marker(A, commits=True)
    story.shown(A, "x")
    assert story.anomalies() == ["committed-abort"]


# 10. Visibility to readers.


def test_an_aborted_record_that_a_reader_is_shown_is_found(story: Story) -> None:
    story.data(A, "x")
    story.marker(A, commits=False)
    story.shown(A, "x")
    assert story.anomalies() == ["shown-uncommitted"]


def test_a_committed_record_that_a_reader_is_not_shown_is_found(story: Story) -> None:
    story.data(A, "x")
    story.marker(A, commits=True)
    story.shown(A)
    assert story.anomalies() == ["hidden-committed"]
