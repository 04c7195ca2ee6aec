"""Each rule on transactions finds the history that breaks it, and nothing in one that does not."""

from __future__ import annotations

import pytest

from tests.simulation.checker import check
from tests.simulation.history import (
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

A = Key("a", 0)
B = Key("b", 0)
ID = 7


class Story:
    """Writes the history of some transactions by hand: operations, and what lies in the log."""

    def __init__(self) -> None:
        self.history = History()

    def transact(self, *sends: tuple[Key, str, int], outcome: Outcome = Outcome.OK) -> Operation:
        operation = self.history.invoke("worker", "transaction")
        operation.sends = [Send(key, value, offset) for key, value, offset in sends]
        self.complete(operation, outcome)
        return operation

    def complete(self, operation: Operation, outcome: Outcome) -> None:
        if outcome is Outcome.OK:
            self.history.ok(operation)
        elif outcome is Outcome.FAIL:
            self.history.fail(operation, "aborted")
        else:
            self.history.unknown(operation, "timed out")

    def issue(
        self, instance: str, epoch: int, producer_id: int = ID, own_epochs: bool = False
    ) -> None:
        operation = self.history.invoke(instance, "identity")
        operation.identity = Identity("id", instance, producer_id, epoch, own_epochs)
        self.history.ok(operation)

    def data(self, key: Key, offset: int, value: str, epoch: int = 0, sequence: int = 0) -> None:
        self.history.batches.append(
            StoredBatch(
                key, offset, offset, ID, epoch, sequence, 1, transactional=True, values=(value,)
            )
        )

    def marker(self, key: Key, offset: int, commits: bool, epoch: int = 0) -> None:
        self.history.batches.append(
            StoredBatch(key, offset, offset, ID, epoch, -1, 1, True, True, commits)
        )

    def store(self, *states: str, epoch: int = 0) -> None:
        self.history.transactions += [StoredTransaction("id", state, ID, epoch) for state in states]

    def read(self, *records: tuple[Key, int, str]) -> None:
        for key in (A, B):
            operation = self.history.invoke("reader", "poll", final=True)
            found = [(offset, value) for one, offset, value in records if one == key]
            operation.polls = [Poll(key, 0, 9, found)]
            self.history.ok(operation)

    def names(self) -> set[str]:
        return check(self.history, dense=False).names()


def test_good_transactions_have_no_anomaly() -> None:
    story = Story()
    story.issue("one", 0)
    story.transact((A, "x", 0), (B, "y", 0))
    story.transact((A, "gone", 2), outcome=Outcome.FAIL)
    story.issue("two", 1)
    for key, value in ((A, "x"), (B, "y")):
        story.data(key, 0, value)
        story.marker(key, 1, commits=True)
    story.data(A, 2, "gone", sequence=1)
    story.marker(A, 3, commits=False, epoch=1)
    story.store("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "Ongoing", "PrepareAbort")
    story.store("CompleteAbort", "Empty", epoch=1)
    story.read((A, 0, "x"), (B, 0, "y"))
    assert str(check(story.history, dense=False)) == ""


def test_an_identity_that_two_instances_have() -> None:
    story = Story()
    story.issue("one", 3)
    story.issue("two", 3)
    assert story.names() == {"identity-twice", "epoch-back"}


def test_an_epoch_that_goes_back() -> None:
    story = Story()
    story.issue("one", 3)
    story.issue("two", 2)
    assert story.names() == {"epoch-back"}


def test_another_producer_id_before_the_epochs_are_used_up() -> None:
    story = Story()
    story.issue("one", 3)
    story.issue("two", 0, producer_id=8)
    assert story.names() == {"epoch-back"}


def test_another_producer_id_when_the_epochs_are_used_up() -> None:
    story = Story()
    story.issue("one", 32766)
    story.issue("two", 0, producer_id=8)
    assert story.names() == set()


@pytest.mark.parametrize(
    "states",
    [
        ("Empty", "PrepareCommit", "CompleteCommit"),
        ("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteAbort"),
        ("Ongoing", "PrepareCommit", "CompleteAbort"),
        ("Ongoing", "CompleteCommit"),
    ],
)
def test_a_transition_that_is_not_legal(states: tuple[str, ...]) -> None:
    story = Story()
    story.store(*states)
    assert story.names() == {"illegal-transition"}


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_what_is_undecided_at_the_end(state: str) -> None:
    story = Story()
    story.store("Ongoing", state)
    assert story.names() == {"undecided"}


def test_data_without_a_marker() -> None:
    story = Story()
    story.data(A, 0, "x")
    assert story.names() == {"hanging-transaction"}


def test_markers_that_disagree() -> None:
    story = Story()
    story.transact((A, "x", 0), (B, "y", 0), outcome=Outcome.UNKNOWN)
    story.data(A, 0, "x")
    story.marker(A, 1, commits=True)
    story.data(B, 0, "y")
    story.marker(B, 1, commits=False)
    story.read((A, 0, "x"))
    assert "split-outcome" in story.names()


def test_a_marker_in_the_midst_of_a_transaction() -> None:
    story = Story()
    story.issue("one", 0)
    story.transact((A, "x", 0), (A, "y", 2))
    story.data(A, 0, "x")
    story.marker(A, 1, commits=True)
    story.data(A, 2, "y", sequence=1)
    story.marker(A, 3, commits=True)
    story.read((A, 0, "x"), (A, 2, "y"))
    assert story.names() == {"split-transaction"}


def test_one_marker_for_two_transactions() -> None:
    story = Story()
    story.transact((A, "x", 0))
    story.transact((A, "y", 1))
    story.data(A, 0, "x")
    story.data(A, 1, "y", sequence=1)
    story.marker(A, 2, commits=True)
    story.read((A, 0, "x"), (A, 1, "y"))
    assert story.names() == {"mixed-transactions"}


def test_a_commit_that_was_told_and_aborted() -> None:
    story = Story()
    story.transact((A, "x", 0))
    story.data(A, 0, "x")
    story.marker(A, 1, commits=False)
    story.read()
    assert story.names() == {"lost-commit", "unseen", "poll-skip"}


def test_an_abort_that_was_committed() -> None:
    story = Story()
    story.transact((A, "x", 0), outcome=Outcome.FAIL)
    story.data(A, 0, "x")
    story.marker(A, 1, commits=True)
    story.read((A, 0, "x"))
    assert story.names() == {"committed-abort", "G1a"}


def test_data_of_an_epoch_that_was_fenced() -> None:
    story = Story()
    story.data(A, 0, "x", epoch=1)
    story.marker(A, 1, commits=False, epoch=2)
    story.data(A, 2, "late", epoch=1, sequence=1)
    story.marker(A, 3, commits=False, epoch=2)
    assert "zombie-write" in story.names()


def test_a_marker_that_comes_twice_where_each_transaction_has_its_epoch() -> None:
    story = Story()
    story.issue("one", 0, own_epochs=True)
    story.marker(A, 1, commits=True, epoch=1)
    story.marker(A, 2, commits=True, epoch=1)
    assert story.names() == {"marker-twice"}


def test_a_marker_that_nobody_decided_so() -> None:
    story = Story()
    story.issue("one", 0, own_epochs=True)
    story.store("Ongoing")
    story.store("PrepareAbort", "CompleteAbort", epoch=1)
    story.marker(A, 1, commits=True, epoch=1)
    assert story.names() == {"marker-against-decision"}


def test_what_readers_are_shown_that_was_never_committed() -> None:
    story = Story()
    story.transact((A, "x", 0), outcome=Outcome.UNKNOWN)
    story.data(A, 0, "x")
    story.marker(A, 1, commits=False)
    story.read((A, 0, "x"))
    assert story.names() == {"shown-uncommitted"}


def test_what_readers_are_not_shown_though_it_was_committed() -> None:
    story = Story()
    story.transact((A, "x", 0), outcome=Outcome.UNKNOWN)
    story.data(A, 0, "x")
    story.marker(A, 1, commits=True)
    story.read()
    assert story.names() == {"hidden-committed"}


def test_inputs_that_were_passed_over() -> None:
    story = Story()
    for start, end in ((0, 3), (5, 7)):
        story.transact().advances = [GroupAdvance("group", A, start, end)]
    assert story.names() == {"never-consumed"}


def test_a_stable_offset_above_the_end() -> None:
    story = Story()
    operation = story.history.invoke("reader", "poll")
    operation.polls = [Poll(A, 0, 0, [], high_watermark=3, last_stable_offset=4)]
    story.history.ok(operation)
    assert story.names() == {"unstable-offset"}


def test_a_stable_offset_that_goes_back() -> None:
    story = Story()
    for stable in (5, 4):
        operation = story.history.invoke("reader", "poll")
        operation.polls = [Poll(A, 0, 0, [], high_watermark=9, last_stable_offset=stable)]
        story.history.ok(operation)
    assert story.names() == {"stale-stable-offset"}
