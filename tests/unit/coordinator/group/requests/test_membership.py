"""SyncGroup, Heartbeat and LeaveGroup: the table's rows for them, and silence."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.group_world import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    GroupWorld,
)
from tidelog.coordinator.group.commands import Leaver, LeaveReply
from tidelog.coordinator.group.records.log_records import GroupStored
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode


def empty_group(world: GroupWorld) -> str:
    """A group without members, and the id of a former member."""
    (member,) = world.stable()
    world.leave(member)
    assert world.state is GroupState.EMPTY
    return member


# The table: SyncGroup.


def test_no_member_syncs_with_an_empty_group() -> None:
    world = GroupWorld()
    member = empty_group(world)
    assert world.synced(world.sync(member, 2)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_during_a_rebalance_is_refused() -> None:
    world = GroupWorld()
    (leader,) = world.stable()
    world.join()
    assert world.synced(world.sync(leader, 1)).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_followers_wait_for_the_leaders_assignment_which_is_stored_first() -> None:
    world = GroupWorld()
    leader, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    assert world.is_parked(waiting)
    assert not world.log
    token = world.sync(leader, 1, {leader: b"a", follower: b"b"})
    assert world.state is GroupState.STABLE
    assert world.synced(token).assignment == b"a"
    assert world.synced(waiting).assignment == b"b"
    assert world.synced(waiting).protocol == "range"
    assert world.synced(waiting).protocol_type == "consumer"
    assert isinstance(world.log[-1], GroupStored)


def test_a_sync_with_a_stable_group_gives_the_assignment() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    for member in (leader, follower):
        reply = world.synced(world.sync(member, 1))
        assert reply.assignment == f"assigned {member}".encode()
    assert len(world.log) == 1


def test_a_member_that_is_assigned_nothing_gets_nothing() -> None:
    world = GroupWorld()
    leader, follower = world.completing(2)
    world.sync(leader, 1, {leader: b"all"})
    assert world.synced(world.sync(follower, 1)).assignment == b""


def test_nothing_can_be_asked_of_a_dead_group() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.group.transition(GroupState.DEAD, 0)
    dead = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.synced(world.sync(member, 1)).error is dead
    assert world.heartbeat(member, 1) is dead
    assert world.leave(member) == LeaveReply(dead)
    assert world.commit(5, member, 1) is dead


def test_a_repeated_sync_ends_the_first() -> None:
    world = GroupWorld()
    _, follower = world.completing(2)
    first = world.sync(follower, 1)
    assert world.is_parked(world.sync(follower, 1))
    assert world.synced(first).error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "error"),
    [
        ("consumer", "range", ErrorCode.NONE),
        ("connect", "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_sync_with_another_protocol_than_the_groups_is_refused(
    protocol_type: str, protocol: str, error: ErrorCode
) -> None:
    world = GroupWorld()
    (member,) = world.stable()
    token = world.sync(member, 1, protocol_type=protocol_type, protocol=protocol)
    assert world.synced(token).error is error


def test_an_assignment_that_is_too_large_is_refused_and_not_stored() -> None:
    world = GroupWorld(GroupSettings(group_bytes_max=10_000))
    leader, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    token = world.sync(leader, 1, {leader: b"x" * 10_000})
    assert world.synced(token).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.synced(waiting).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.state is GroupState.PREPARING_REBALANCE
    assert not world.log


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    world = GroupWorld()
    leader, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    for _ in range(10):
        world.heartbeat(leader, 1)
        world.advance(REBALANCE_MS // 10)
    assert world.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(world.group.members) == [follower]
    assert world.state is GroupState.PREPARING_REBALANCE
    again = world.join(follower)
    assert world.joined(again).leader == follower


def test_followers_that_do_not_sync_in_time_are_removed_from_a_stable_group() -> None:
    world = GroupWorld()
    leader, follower = world.completing(2)
    world.sync(leader, 1, {})
    for _ in range(10):
        world.heartbeat(leader, 1)
        world.heartbeat(follower, 1)
        world.advance(REBALANCE_MS // 10)
    assert list(world.group.members) == [leader]
    assert world.state is GroupState.PREPARING_REBALANCE


# The table: Heartbeat.


def test_a_heartbeat_to_an_empty_group_is_unknown() -> None:
    world = GroupWorld()
    member = empty_group(world)
    assert world.heartbeat(member, 2) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        ("preparing", ErrorCode.REBALANCE_IN_PROGRESS),
        ("completing", ErrorCode.NONE),
        ("stable", ErrorCode.NONE),
    ],
)
def test_a_heartbeat_renews_the_session_in_every_state(begin: str, error: ErrorCode) -> None:
    world = GroupWorld()
    if begin == "preparing":
        member, _ = world.stable(2)
        world.join()
    else:
        (member,) = getattr(world, begin)()
    generation = world.group.generation
    # More than the session timeout, but less than the rebalance timeout.
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(member, generation) is error
    world.advance(SESSION_MS)
    assert world.heartbeat(member, generation) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member", "instance", "generation", "error"),
    [
        ("two", "two", 1, ErrorCode.NONE),
        ("two", None, 1, ErrorCode.NONE),
        ("nobody", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("two", "three", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("nobody", "two", 1, ErrorCode.FENCED_INSTANCE_ID),
        ("one", "two", 0, ErrorCode.FENCED_INSTANCE_ID),
        ("two", "two", 0, ErrorCode.ILLEGAL_GENERATION),
        ("two", None, 2, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_member_is_checked_in_order(
    member: str, instance: str | None, generation: int, error: ErrorCode
) -> None:
    """Each request checks the instance, its owner, the member, and the generation."""
    world = GroupWorld()
    tokens = [world.join(instance_id=name) for name in ("one", "two")]
    world.advance(2 * DELAY_MS)
    ids = dict(
        zip(("one", "two"), [world.joined(token).member_id for token in tokens], strict=True)
    )
    world.sync(ids["one"], 1, {}, instance_id="one")
    member_id = ids.get(member, member)
    assert world.heartbeat(member_id, generation, instance) is error
    assert world.synced(world.sync(member_id, generation, instance_id=instance)).error is error
    assert world.commit(7, member_id, generation, instance_id=instance) is error


@pytest.mark.parametrize(
    ("group_id", "error"),
    [("", ErrorCode.INVALID_GROUP_ID), ("other", ErrorCode.UNKNOWN_MEMBER_ID)],
)
def test_a_group_that_does_not_exist_knows_no_member(group_id: str, error: ErrorCode) -> None:
    world = GroupWorld()
    assert world.heartbeat("m", 1, group_id=group_id) is error
    assert world.synced(world.sync("m", 1, group_id=group_id)).error is error
    reply = world.leave("m", group_id=group_id)
    assert {reply.error, *(each for _, each in reply.members)} - {ErrorCode.NONE} == {error}


# Sessions.


def test_a_member_without_heartbeats_is_removed_and_the_others_rebalance() -> None:
    world = GroupWorld()
    _, follower = world.stable(2)
    world.advance(SESSION_MS - 1)
    world.heartbeat(follower, 1)
    world.advance(1)
    assert world.state is GroupState.PREPARING_REBALANCE
    assert list(world.group.members) == [follower]
    assert world.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_waits_for_us_need_not_be_heard_of() -> None:
    world = GroupWorld()
    leader, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        world.heartbeat(leader, 1)
    world.sync(leader, 1, {follower: b"x"})
    assert world.synced(waiting).assignment == b"x"
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(follower, 1) is ErrorCode.NONE


def test_when_all_members_are_silent_the_group_is_stored_as_empty() -> None:
    world = GroupWorld()
    world.stable(3)
    world.advance(SESSION_MS + REBALANCE_MS)
    assert world.state is GroupState.EMPTY
    record = world.log[-1]
    assert isinstance(record, GroupStored)
    assert (record.group.generation, record.group.members) == (2, ())
    assert (record.group.protocol, record.group.leader) == (None, None)
    assert record.group.protocol_type == "consumer"


# LeaveGroup.


def test_a_member_that_leaves_is_not_waited_for() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    world.join(leader)
    reply = world.leave(follower)
    assert reply.members == [(Leaver(follower, None), ErrorCode.NONE)]
    assert world.state is GroupState.COMPLETING_REBALANCE
    assert world.group.generation == 2


@pytest.mark.parametrize("begin", ["completing", "stable"])
def test_a_member_that_leaves_starts_a_rebalance(begin: str) -> None:
    world = GroupWorld()
    leader, follower = getattr(world, begin)(2)
    world.leave(leader)
    assert world.state is GroupState.PREPARING_REBALANCE
    assert world.group.leader == follower


def test_parked_requests_of_a_leaving_member_are_answered() -> None:
    world = GroupWorld()
    token = world.join()
    (member,) = world.group.members
    world.leave(member)
    assert world.joined(token).error is ErrorCode.UNKNOWN_MEMBER_ID
    world = GroupWorld()
    _, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    world.leave(follower)
    assert world.synced(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_batch_of_members_leaves_at_once_each_with_its_own_answer() -> None:
    world = GroupWorld()
    tokens = [world.join(instance_id=name) for name in ("one", "two", "three")]
    world.advance(3 * DELAY_MS)
    one, two, three = (world.joined(token).member_id for token in tokens)
    world.sync(one, 1, {}, instance_id="one")
    leavers = {
        Leaver("", "one"): ErrorCode.NONE,
        Leaver(two, "two"): ErrorCode.NONE,
        Leaver(two, "three"): ErrorCode.FENCED_INSTANCE_ID,
        Leaver("", "nobody"): ErrorCode.UNKNOWN_MEMBER_ID,
        Leaver("nobody", None): ErrorCode.UNKNOWN_MEMBER_ID,
        Leaver("", None): ErrorCode.UNKNOWN_MEMBER_ID,
    }
    assert dict(world.leave(*leavers).members) == leavers
    assert list(world.group.members) == [three]
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_pending_id_may_leave_without_a_rebalance() -> None:
    world = GroupWorld()
    (leader,) = world.stable()
    given = world.joined(world.join(version=4)).member_id
    assert world.leave(given).members[0][1] is ErrorCode.NONE
    assert world.state is GroupState.STABLE
    assert world.heartbeat(leader, 1) is ErrorCode.NONE
    assert not world.group.pending_joins


def test_the_last_member_leaves_an_empty_group() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.leave(member)
    assert world.state is GroupState.EMPTY
    assert world.describe().members == []
    assert world.machine.stored_groups[GROUP].members == ()
