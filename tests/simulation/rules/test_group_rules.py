"""Each rule on groups finds a history that breaks it, and accepts one that does not."""

from __future__ import annotations

from tests.simulation.rules.checker import check
from tests.simulation.rules.history import (
    Claim,
    GroupOffsets,
    History,
    Key,
    Operation,
    Outcome,
    Poll,
    Send,
)

A = Key("a", 0)
B = Key("b", 0)


class Story:
    """Writes a group's history by hand, one operation after the other."""

    def __init__(self) -> None:
        self.history = History()

    def join(self, member: str, generation: int, *keys: Key, leader: bool = False) -> Operation:
        operation = self.history.invoke(member, "join")
        operation.claim = Claim("group", generation, member, leader, keys)
        self.history.ok(operation)
        return operation

    def heartbeat(self, process: str, epoch: int, *keys: Key, life: int = 0) -> Operation:
        """A heartbeat of a consumer group's member. The answer tells the partitions that it may
        consume."""
        operation = self.history.invoke(process, "join")
        member = f"{process}.{life}"
        operation.claim = Claim("group", epoch, member, False, keys, "consumer")
        self.history.ok(operation)
        return operation

    def commit(
        self, member: str, generation: int, offset: int, outcome: Outcome = Outcome.OK
    ) -> Operation:
        operation = self.history.invoke(member, "commit")
        operation.offsets = GroupOffsets("group", generation, {A: offset})
        if outcome is Outcome.OK:
            self.history.ok(operation)
        else:
            self.history.unknown(operation, "timed out")
        return operation

    def find(self, member: str, generation: int, offset: int) -> Operation:
        operation = self.history.invoke(member, "offsets")
        operation.offsets = GroupOffsets("group", generation, {A: offset})
        self.history.ok(operation)
        return operation

    def send(self, value: str, offset: int) -> None:
        operation = self.history.invoke("producer", "send", [])
        operation.sends = [Send(A, value, offset)]
        self.history.ok(operation)

    def poll(self, reader: str, *records: tuple[int, str], final: bool = False) -> None:
        operation = self.history.invoke(reader, "poll", final=final)
        operation.polls = [Poll(A, 0, 0, list(records))]
        self.history.ok(operation)

    def names(self) -> set[str]:
        return check(self.history).names()


def test_a_good_history_has_no_anomaly() -> None:
    story = Story()
    story.join("one", 1, A, B, leader=True)
    assert story.find("one", 1, -1)
    story.commit("one", 1, 3)
    story.join("two", 2, A)
    story.join("one", 2, B, leader=True)
    story.find("two", 2, 3)
    story.commit("two", 2, 5, Outcome.UNKNOWN)
    story.find("two", 2, 3)
    story.find("two", 2, 5)
    story.commit("two", 2, 5)
    assert str(check(story.history)) == ""


def test_two_owners() -> None:
    story = Story()
    story.join("one", 1, A)
    story.join("two", 1, A)
    assert story.names() == {"two-owners"}


def test_owners_of_different_generations_may_overlap() -> None:
    story = Story()
    story.join("one", 1, A)
    story.join("two", 2, A)
    assert story.names() == set()


def test_two_leaders() -> None:
    story = Story()
    story.join("one", 1, A, leader=True)
    story.join("two", 1, B, leader=True)
    assert story.names() == {"two-leaders"}


def test_a_generation_that_was_over_before() -> None:
    story = Story()
    story.join("one", 2, A)
    story.join("two", 1, B)
    assert story.names() == {"generation-back"}


def test_a_join_that_began_earlier_may_be_of_an_earlier_generation() -> None:
    story = Story()
    slow = story.history.invoke("slow", "join")
    story.join("one", 2, A)
    slow.claim = Claim("group", 1, "slow", False, (A,))
    story.history.ok(slow)
    assert story.names() == set()


def test_a_commit_from_a_generation_that_is_over() -> None:
    story = Story()
    story.join("one", 1, A)
    story.join("two", 2, A)
    story.commit("one", 1, 7)
    assert story.names() == {"stale-commit"}


def test_an_offset_without_a_commit() -> None:
    story = Story()
    story.commit("one", 1, 3)
    story.find("one", 1, 4)
    assert story.names() == {"phantom-offset"}


def test_an_offset_that_goes_back() -> None:
    story = Story()
    story.commit("one", 1, 3)
    story.commit("one", 1, 7)
    story.find("one", 1, 3)
    assert story.names() == {"offset-back"}


def test_an_offset_that_is_gone() -> None:
    story = Story()
    story.commit("one", 1, 3)
    story.find("one", 1, -1)
    assert story.names() == {"offset-back"}


def test_a_late_commit_of_an_earlier_generation_is_no_excuse() -> None:
    story = Story()
    story.commit("one", 1, 3, Outcome.UNKNOWN)
    story.commit("one", 1, 7)
    assert story.find("one", 1, 3)
    assert story.names() == set(), "the unknown commit may be late, in its own generation"
    story.commit("two", 2, 8)
    story.find("two", 2, 3)
    assert story.names() == {"offset-back"}


def test_a_commit_of_records_that_no_consumer_read() -> None:
    story = Story()
    for offset, value in enumerate("xyz"):
        story.send(value, offset)
    story.join("one", 1, A)
    story.poll("one", (0, "x"))
    story.poll("other", (1, "y"))
    story.commit("one", 1, 2)
    story.poll("final", (0, "x"), (1, "y"), (2, "z"), final=True)
    assert story.names() == {"passed-over"}


def test_records_read_by_another_member_count() -> None:
    story = Story()
    story.send("x", 0)
    story.join("one", 1, A)
    story.poll("one", (0, "x"))
    story.join("two", 2, A)
    story.commit("two", 2, 1)
    story.poll("final", (0, "x"), final=True)
    assert story.names() == set()


def test_members_of_a_consumer_group_give_up_partitions_that_others_get() -> None:
    story = Story()
    story.heartbeat("one", 1, A, B)
    story.heartbeat("one", 1, B)
    story.heartbeat("two", 2, A)
    story.commit("one", 1, 3)
    story.heartbeat("one", 2, B)
    story.heartbeat("two", 2, A)
    story.commit("two", 2, 5)
    assert str(check(story.history)) == ""


def test_a_partition_assigned_while_another_member_owns_the_partition() -> None:
    story = Story()
    story.heartbeat("one", 1, A, B)
    story.heartbeat("two", 2, A)
    assert story.names() == set(), "the first may have been put out"
    story.heartbeat("one", 2, A, B)
    assert story.names() == {"given-twice"}


def test_a_commit_of_a_removed_member_of_a_consumer_group() -> None:
    story = Story()
    story.heartbeat("one", 1, A)
    story.heartbeat("two", 2, A)
    story.commit("one", 1, 3)
    assert story.names() == {"given-twice"}


def test_a_returning_member_begins_anew() -> None:
    story = Story()
    story.heartbeat("one", 7, A)
    story.heartbeat("two", 8, A)
    story.heartbeat("two", 8)
    story.heartbeat("one", 2, A, life=1)
    assert story.names() == set()


def test_an_epoch_of_a_member_that_goes_back() -> None:
    story = Story()
    story.heartbeat("one", 2, A)
    story.heartbeat("one", 1, A)
    assert story.names() == {"epoch-of-member-back"}


def test_epochs_of_members_differ_on_the_way_to_the_newest() -> None:
    story = Story()
    story.heartbeat("one", 2, A)
    story.heartbeat("two", 1, B)
    story.commit("one", 2, 4)
    assert story.names() == set()
