"""TxnOffsetCommit: which producers are fenced, which offsets are pending, and which count when the
transaction has ended."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.group_world import GROUP, NEW, OLD, SESSION_MS, GroupWorld
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteOffsets,
    DeleteReply,
    ErrorReply,
    FetchOffsets,
    ForgetTopics,
    Leaver,
    OffsetsReply,
    PartitionErrors,
)
from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    OffsetPending,
    OffsetRemoved,
)
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode

DAY_MS = 24 * 3600 * 1000
SWEEP_MS = GroupSettings().offsets_check_interval_ms


# Fencing (KIP-447).


def test_a_group_without_members_takes_offsets_without_a_generation() -> None:
    world = GroupWorld()
    assert world.commit_in_transaction(5) is ErrorCode.NONE
    committed = CommittedOffset(5, 5, "", world.now.time_ms)
    assert world.log == [OffsetPending(1, GROUP, "t", 0, committed)]
    assert world.describe().state == "Empty"


def test_a_generation_of_a_group_that_does_not_exist() -> None:
    world = GroupWorld()
    assert world.commit_in_transaction(5, "m", 3) is ErrorCode.ILLEGAL_GENERATION
    assert not world.log
    assert not world.machine.groups


def test_a_producer_without_a_generation_commits_to_an_empty_group() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.leave(member)
    assert world.commit_in_transaction(5, "somebody") is ErrorCode.NONE
    assert world.commit_in_transaction(5, member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
def test_a_commit_without_a_member_is_not_fenced(begin: str) -> None:
    """Before version 3 of the request, clients know neither member nor generation."""
    world = GroupWorld()
    getattr(world, begin)()
    assert world.commit_in_transaction(5) is ErrorCode.NONE


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
def test_members_are_fenced_in_every_state(begin: str) -> None:
    world = GroupWorld()
    if begin == "preparing":
        (member,) = world.stable()
        world.join()
    else:
        (member,) = getattr(world, begin)()
    assert world.commit_in_transaction(4, "nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(4, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(4, "", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(4, member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit_in_transaction(4, member, 2) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit_in_transaction(4, member, 1, instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.stable_offset() is None
    assert world.commit_in_transaction(5, member, 1) is ErrorCode.NONE
    assert world.stable_offset() is ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    world = GroupWorld()
    (old,) = world.stable(instance_id="i")
    world.joined(world.join(instance_id="i"))
    error = world.commit_in_transaction(5, old, 1, instance_id="i")
    assert error is ErrorCode.FENCED_INSTANCE_ID


def test_a_group_that_was_removed_is_fenced_like_one_that_never_was() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    group = world.group
    world.leave(member)
    world.ask(DeleteGroup(GROUP), DeleteReply)
    assert group.state is GroupState.DEAD
    assert world.commit_in_transaction(5, member, 1) is ErrorCode.ILLEGAL_GENERATION


def test_a_transactional_commit_does_not_renew_the_session() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.advance(SESSION_MS - 1)
    assert world.commit_in_transaction(5, member, 1) is ErrorCode.NONE
    world.advance(1)
    assert world.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_metadata_have_a_limit() -> None:
    world = GroupWorld()
    error = world.commit_in_transaction(6, metadata="x" * 4097)
    assert error is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert not world.log


# Pending, committed, aborted.


def test_pending_offsets_count_when_their_transaction_commits() -> None:
    world = GroupWorld()
    world.commit(5)
    world.commit_in_transaction(9)
    assert (world.committed(), world.stable_offset()) == (5, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    world.end_transaction(commit=True)
    assert (world.committed(), world.stable_offset()) == (9, 9)


def test_pending_offsets_never_were_when_their_transaction_aborts() -> None:
    world = GroupWorld()
    world.commit(5)
    world.commit_in_transaction(9)
    world.end_transaction(commit=False)
    assert (world.committed(), world.stable_offset()) == (5, 5)


def test_the_last_of_a_transaction_counts() -> None:
    world = GroupWorld()
    world.commit_in_transaction(9)
    world.commit_in_transaction(7)
    world.end_transaction(commit=True)
    assert world.committed() == 7


def test_a_marker_ends_only_pending_offsets_of_its_producer_in_all_groups() -> None:
    world = GroupWorld()
    for group_id in ("a", "b"):
        world.commit_in_transaction(3, group_id=group_id, topic="t")
        world.commit_in_transaction(4, group_id=group_id, topic="u")
        world.commit_in_transaction(5, group_id=group_id, topic="v", producer_id=2)
    world.end_transaction(1, commit=True)
    for group_id in ("a", "b"):
        assert world.stable_offset("t", group_id) == 3
        assert world.stable_offset("u", group_id) == 4
        assert world.stable_offset("v", group_id) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(1, commit=False)
    assert world.committed("t", "a") == 3


def test_a_later_commit_is_not_replaced_by_a_pending_offset() -> None:
    """The order of the log counts, not the order in which transactions end."""
    world = GroupWorld()
    world.commit_in_transaction(9)
    world.commit(5)
    assert world.stable_offset() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(commit=True)
    assert (world.committed(), world.stable_offset()) == (5, 5)


@pytest.mark.parametrize(("first", "second", "expected"), [(1, 2, 20), (2, 1, 20)])
def test_of_two_transactions_the_later_offset_counts(
    first: int, second: int, expected: int
) -> None:
    world = GroupWorld()
    world.commit_in_transaction(10, producer_id=1)
    world.commit_in_transaction(20, producer_id=2)
    world.end_transaction(first, commit=True)
    assert world.stable_offset() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(second, commit=True)
    assert world.stable_offset() == expected


def test_the_order_is_that_of_each_transactions_last_offset() -> None:
    world = GroupWorld()
    world.commit_in_transaction(10, producer_id=1)
    world.commit_in_transaction(20, producer_id=2)
    world.commit_in_transaction(30, producer_id=1)
    world.end_transaction(1, commit=True)
    world.end_transaction(2, commit=True)
    assert world.committed() == 30


# OffsetFetch.


def test_only_requests_for_stable_offsets_learn_of_pending_offsets() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit(6, topic="u")
    world.commit_in_transaction(7, topic="t")
    asked = {"t": [0, 1], "u": [0]}
    loose = world.ask(FetchOffsets(GROUP, asked), OffsetsReply)
    assert not loose.unstable
    assert loose.topics["t"][0] is not None
    stable = world.ask(FetchOffsets(GROUP, asked, require_stable=True), OffsetsReply)
    assert stable.unstable == {("t", 0)}
    assert (stable.topics["t"][0], stable.topics["t"][1]) == (None, None)
    assert stable.topics["u"][0] == loose.topics["u"][0]


def test_all_stable_offsets_tell_of_pending_ones_where_nothing_is_committed_yet() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit_in_transaction(7, topic="u")
    reply = world.ask(FetchOffsets(GROUP, None, require_stable=True), OffsetsReply)
    assert reply.unstable == {("u", 0)}
    assert {topic: list(each) for topic, each in reply.topics.items()} == {"t": [0], "u": [0]}
    assert world.ask(FetchOffsets(GROUP, None), OffsetsReply).topics.keys() == {"t"}


# State that is removed while a transaction is open.


def test_deleted_offsets_take_pending_ones_along() -> None:
    world = GroupWorld()
    world.commit(5)
    world.commit_in_transaction(9)
    world.ask(DeleteOffsets(GROUP, [("t", 0)]), PartitionErrors)
    assert world.stable_offset() is None
    world.end_transaction(commit=True)
    assert world.committed() is None


def test_a_pending_offset_is_deleted_where_nothing_is_committed() -> None:
    world = GroupWorld()
    world.commit_in_transaction(9)
    world.ask(DeleteOffsets(GROUP, [("t", 0)]), PartitionErrors)
    assert world.log[-1] == OffsetRemoved(GROUP, "t", 0)
    world.end_transaction(commit=True)
    assert world.committed() is None


def test_a_deleted_group_takes_pending_offsets_along() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit_in_transaction(9, topic="t")
    world.commit_in_transaction(9, topic="u")
    world.commit_in_transaction(9, topic="t", group_id="other")
    assert world.ask(DeleteGroup(GROUP), DeleteReply).error is ErrorCode.NONE
    assert world.log[-2:] == [OffsetRemoved(GROUP, "t", 0), OffsetRemoved(GROUP, "u", 0)]
    world.end_transaction(commit=True)
    assert (world.committed("t"), world.committed("u")) == (None, None)
    assert world.committed("t", "other") == 9
    world.restart()
    assert list(world.machine.groups) == ["other"]


def test_a_deleted_topic_takes_pending_offsets_along() -> None:
    world = GroupWorld()
    world.commit_in_transaction(9, topic="t")
    world.commit_in_transaction(9, topic="u")
    world.ask(ForgetTopics({"t": {OLD}}), ErrorReply)
    world.end_transaction(commit=True)
    assert (world.committed("t"), world.committed("u")) == (None, 9)


def test_a_commit_skips_a_topic_that_was_deleted_without_a_coordinator() -> None:
    world = GroupWorld()
    world.commit_in_transaction(9, topic="t", topic_id=OLD)
    world.commit_in_transaction(9, topic="u", topic_id=NEW)
    world.deleted.add(("t", OLD))
    world.restart()
    world.end_transaction(commit=True)
    assert (world.committed("t"), world.committed("u")) == (None, 9)


def test_no_offset_expires_while_a_transaction_may_change_the_offset() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit(5, topic="u")
    world.commit_in_transaction(9, topic="t")
    world.advance(8 * DAY_MS)
    assert (world.committed("t"), world.committed("u")) == (5, None)
    world.end_transaction(commit=False)
    world.advance(SWEEP_MS)
    assert world.committed("t") is None
    assert GROUP not in world.machine.groups


def test_a_group_stays_while_a_transaction_has_offsets_for_the_group() -> None:
    world = GroupWorld()
    world.commit_in_transaction(9)
    world.advance(8 * DAY_MS)
    assert GROUP in world.machine.groups
    world.end_transaction(commit=False)
    world.advance(SWEEP_MS)
    assert GROUP not in world.machine.groups


# The broker dies.


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_wait_for_their_marker_over_a_restart(commit: bool) -> None:
    world = GroupWorld()
    world.commit(5)
    world.commit_in_transaction(9, producer_id=1)
    world.commit_in_transaction(11, producer_id=2, topic="u")
    world.restart()
    assert world.stable_offset() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(1, commit=commit)
    world.restart()
    assert world.stable_offset() == (9 if commit else 5)
    assert world.stable_offset("u") is ErrorCode.UNSTABLE_OFFSET_COMMIT


def test_a_group_of_pending_offsets_alone_is_there_after_a_restart() -> None:
    world = GroupWorld()
    world.commit_in_transaction(9)
    world.restart()
    assert world.describe().state == "Empty"
    world.leave(Leaver("nobody", None))
    world.end_transaction(commit=True)
    assert world.committed() == 9
