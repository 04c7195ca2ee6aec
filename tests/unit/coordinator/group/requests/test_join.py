"""JoinGroup: the table's rows for it, the votes, the delays, and the choice of the leader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.coordinator.group.group_world import (
    DELAY_MS,
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    GroupWorld,
)
from tidelog.coordinator.group.commands import JoinedMember
from tidelog.coordinator.group.records.log_records import GroupStored
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode

OTHER = (SupportedProtocol("range", b"other metadata"),)


def protocols(*names: str) -> tuple[SupportedProtocol, ...]:
    return tuple(SupportedProtocol(name, name.encode()) for name in names)


def member_of(world: GroupWorld) -> str:
    """The id of the newest member."""
    return list(world.group.members)[-1]


# The table: an unknown member.


def test_the_first_member_starts_a_rebalance_and_waits_for_other_members() -> None:
    world = GroupWorld()
    token = world.join()
    assert world.state is GroupState.PREPARING_REBALANCE
    world.advance(DELAY_MS - 1)
    assert world.is_parked(token)
    world.advance(1)
    reply = world.joined(token)
    assert (reply.error, reply.generation, reply.protocol) == (ErrorCode.NONE, 1, "range")
    assert reply.leader == reply.member_id == "client-1"
    assert reply.members == (JoinedMember("client-1", None, b"range metadata"),)
    assert world.describe().state == "CompletingRebalance"


def test_an_unknown_member_is_parked_while_others_join() -> None:
    world = GroupWorld()
    world.preparing()
    assert world.is_parked(world.join())
    assert world.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("begin", ["completing", "stable"])
def test_an_unknown_member_starts_a_rebalance_in_a_group_that_has_a_generation(begin: str) -> None:
    world = GroupWorld()
    (leader,) = getattr(world, begin)()
    newcomer = world.join()
    assert world.state is GroupState.PREPARING_REBALANCE
    assert world.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(leader)
    # All have joined: no member waits for the timer.
    assert world.joined(again).generation == world.joined(newcomer).generation == 2
    assert world.joined(newcomer).members == ()
    assert len(world.joined(again).members) == 2


# The table: a known member.


def test_a_known_member_of_an_empty_group_is_not_known() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.leave(member)
    assert world.state is GroupState.EMPTY
    assert world.join_refused(member) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_known_member_is_parked_while_others_join() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    world.join()
    assert world.is_parked(world.join(leader))
    assert world.state is GroupState.PREPARING_REBALANCE
    assert world.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_repeats_its_join_is_told_the_generation_again() -> None:
    """The answer was lost. The group does not change, and the leader gets its members."""
    world = GroupWorld()
    leader, follower = world.completing(2)
    assert world.joined(world.join(follower)).generation == 1
    assert len(world.joined(world.join(leader)).members) == 2
    assert world.state is GroupState.COMPLETING_REBALANCE


def test_a_member_with_other_metadata_starts_a_rebalance_before_the_assignment() -> None:
    world = GroupWorld()
    _, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    assert world.is_parked(world.join(follower, protocols=OTHER))
    assert world.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_joins_a_stable_group_again_starts_a_rebalance() -> None:
    """The leader has seen a change that alters the assignment, although its metadata are the
    same."""
    world = GroupWorld()
    leader, _ = world.stable(2)
    assert world.is_parked(world.join(leader))
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_follower_of_a_stable_group_starts_one_only_with_other_metadata() -> None:
    world = GroupWorld()
    _, follower = world.stable(2)
    assert world.joined(world.join(follower)).generation == 1
    assert world.describe().state == "Stable"
    assert world.is_parked(world.join(follower, protocols=OTHER))
    assert world.state is GroupState.PREPARING_REBALANCE


def test_no_member_joins_a_dead_group() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.group.transition(GroupState.DEAD, 0)
    assert world.join_refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.join_refused(member) is ErrorCode.COORDINATOR_NOT_AVAILABLE


# Joins that are refused before the group is looked at.


@pytest.mark.parametrize(
    ("member_id", "options", "error"),
    [
        ("", {"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ("", {"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("", {"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("named", {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", {"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("", {"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_group_that_does_not_exist_refuses(
    member_id: str, options: dict[str, Any], error: ErrorCode
) -> None:
    world = GroupWorld()
    assert world.join_refused(member_id, **options) is error
    assert not world.machine.groups
    assert not world.log


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_limits_of_the_session_timeout_are_allowed(session_ms: int) -> None:
    world = GroupWorld()
    assert world.is_parked(world.join(session_ms=session_ms))


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
@pytest.mark.parametrize(
    "options", [{"protocols": protocols("roundrobin")}, {"protocol_type": "connect"}]
)
def test_members_must_share_a_type_and_a_protocol(begin: str, options: dict[str, Any]) -> None:
    world = GroupWorld()
    getattr(world, begin)()
    state = world.state
    assert world.join_refused(**options) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.state is state


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
def test_unknown_members_and_instances_are_refused(begin: str) -> None:
    world = GroupWorld()
    getattr(world, begin)()
    unknown = world.join_refused("nobody")
    assert unknown is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join_refused("nobody", instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_one_more() -> None:
    world = GroupWorld(GroupSettings(members_max=2))
    members = world.stable(2)
    assert world.join_refused() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.state is GroupState.STABLE
    assert world.is_parked(world.join(members[0]))


def test_members_that_do_not_come_back_do_not_keep_others_out() -> None:
    world = GroupWorld(GroupSettings(members_max=2))
    leader, _ = world.stable(2)
    world.join(leader)
    assert world.is_parked(world.join())
    assert world.join_refused() is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_rebalance_does_not_wait_for_an_id_that_was_refused() -> None:
    world = GroupWorld(GroupSettings(members_max=2))
    (leader,) = world.stable()
    ids = [world.joined(world.join(version=4)).member_id for _ in range(2)]
    joined = world.join(leader), world.join(ids[0], version=4)
    assert world.is_parked(joined[0])
    assert world.join_refused(ids[1], version=4) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [world.joined(each).generation for each in joined] == [2, 2]


def test_a_group_above_a_lowered_limit_rebalances_after_the_load() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2)
    world.settings = GroupSettings(members_max=1)
    world.restart()
    assert world.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    token = world.join(leader)
    assert world.join_refused(follower) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joined(token).generation == 2
    assert list(world.group.members) == [leader]


# KIP-394: ids.


def test_a_new_member_is_told_its_id_and_joins_with_that_id() -> None:
    world = GroupWorld()
    reply = world.joined(world.join(version=4))
    assert (reply.error, reply.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "client-1")
    assert world.state is GroupState.EMPTY
    token = world.join("client-1", version=4)
    world.advance(DELAY_MS)
    assert world.joined(token).member_id == "client-1"


def test_an_unused_id_is_forgotten_after_a_session_timeout() -> None:
    world = GroupWorld()
    world.join(version=4)
    world.advance(SESSION_MS)
    assert world.join_refused("client-1", version=4) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_ids_that_were_given_out_but_not_for_ever() -> None:
    world = GroupWorld()
    (leader,) = world.stable()
    world.join(version=4)
    again = world.join(leader)
    assert world.is_parked(again)
    world.advance(SESSION_MS)
    assert world.joined(again).generation == 2


def test_an_unused_id_that_expires_disturbs_no_stable_group() -> None:
    world = GroupWorld()
    (leader,) = world.stable(session_ms=60_000)
    world.join(version=4)
    world.advance(SESSION_MS)
    assert world.heartbeat(leader, 1) is ErrorCode.NONE
    assert world.state is GroupState.STABLE


def test_ids_are_given_out_within_a_limit() -> None:
    world = GroupWorld(GroupSettings(pending_members_max=2))
    for _ in range(2):
        assert world.join_refused(version=4) is ErrorCode.MEMBER_ID_REQUIRED
    assert world.join_refused(version=4) is ErrorCode.GROUP_MAX_SIZE_REACHED


# The first rebalance.


def test_the_first_rebalance_is_extended_while_members_come() -> None:
    world = GroupWorld()
    first = world.join(rebalance_ms=8_000)
    world.advance(DELAY_MS - 1)
    second = world.join(rebalance_ms=8_000)
    world.advance(1)
    assert world.is_parked(first)
    world.advance(DELAY_MS - 1)
    third = world.join(rebalance_ms=8_000)
    world.advance(1)
    # The delay is at most 8 seconds: two are left.
    world.advance(1_999)
    assert world.is_parked(first)
    world.advance(1)
    assert {world.joined(each).generation for each in (first, second, third)} == {1}


def test_a_rebalance_timeout_below_the_delay_does_not_extend_the_delay() -> None:
    world = GroupWorld()
    first = world.join(rebalance_ms=1_000)
    world.join(rebalance_ms=1_000)
    world.advance(DELAY_MS)
    assert world.joined(first).generation == 1


def test_without_a_delay_the_first_member_begins_at_once() -> None:
    world = GroupWorld(GroupSettings(initial_rebalance_delay_ms=0))
    token = world.join()
    world.advance(0)
    assert world.joined(token).generation == 1


# Later rebalances.


def test_members_that_do_not_join_in_time_are_removed() -> None:
    world = GroupWorld()
    leader, slow = world.stable(2)
    again = world.join(leader)
    for _ in range(9):
        world.advance(REBALANCE_MS // 10)
        assert world.heartbeat(slow, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.is_parked(again)
    world.advance(REBALANCE_MS // 10)
    assert [each.member_id for each in world.joined(again).members] == [leader]
    assert world.heartbeat(slow, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_counts() -> None:
    world = GroupWorld()
    first = world.join(rebalance_ms=10_000)
    world.join(rebalance_ms=90_000)
    world.advance(2 * DELAY_MS)
    leader = world.joined(first).member_id
    assert world.group.rebalance_timeout_ms == 90_000
    again = world.join(leader, protocols=OTHER, rebalance_ms=10_000, session_ms=1_000_000)
    silent = [each for each in world.group.members if each != leader]
    # Heartbeats keep the member's session alive, but its join does not come.
    for _ in range(10):
        world.advance(8_900)
        assert world.heartbeat(silent[0], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.is_parked(again)
    world.advance(1_000)
    assert world.joined(again).generation == 2


def test_a_leader_that_does_not_join_is_replaced_by_one_that_did() -> None:
    world = GroupWorld()
    _, follower = world.stable(2)
    again = world.join(follower, protocols=OTHER)
    world.advance(REBALANCE_MS)
    assert world.joined(again).leader == follower
    assert len(world.joined(again).members) == 1


def test_a_new_member_whose_join_waits_too_long_is_sent_away() -> None:
    """The client may be gone: the broker cannot see that while the request is parked."""
    world = GroupWorld()
    (leader,) = world.stable(rebalance_ms=20 * 60_000)
    newcomer = world.join(rebalance_ms=20 * 60_000)
    for _ in range(5 * 60 // 6):
        world.heartbeat(leader, 1)
        world.advance(6_000)
    assert world.joined(newcomer).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(world.group.members) == [leader]


def test_a_repeated_join_ends_the_first_waiting_join() -> None:
    world = GroupWorld()
    leader, _ = world.stable(2)
    first = world.join(leader)
    second = world.join(leader)
    assert world.joined(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.is_parked(second)


# The vote.


def test_each_member_votes_for_its_first_protocol_that_all_support() -> None:
    world = GroupWorld()
    tokens = [
        world.join(protocols=protocols("sticky", "range", "roundrobin")),
        world.join(protocols=protocols("roundrobin", "range")),
        world.join(protocols=protocols("range", "roundrobin")),
    ]
    world.advance(3 * DELAY_MS)
    # Not all members support "sticky", so the vote of the member that prefers it goes to "range".
    assert {world.joined(token).protocol for token in tokens} == {"range"}
    assert [each.metadata for each in world.joined(tokens[0]).members] == [b"range"] * 3


def test_a_member_that_brings_another_choice_changes_the_protocol() -> None:
    world = GroupWorld()
    (leader,) = world.stable(protocols=protocols("range", "sticky"))
    newcomer = world.join(protocols=protocols("sticky"))
    world.join(leader, protocols=protocols("range", "sticky"))
    assert world.joined(newcomer).protocol == "sticky"


# KIP-345: static members.


def static_pair(world: GroupWorld) -> tuple[str, str]:
    """A stable group of a leader "one" and a follower "two"."""
    tokens = [world.join(instance_id=name) for name in ("one", "two")]
    world.advance(2 * DELAY_MS)
    one, two = (world.joined(token).member_id for token in tokens)
    world.sync(two, 1, instance_id="two")
    world.sync(one, 1, {one: b"for one", two: b"for two"}, instance_id="one")
    assert world.state is GroupState.STABLE
    return one, two


def test_static_members_need_no_id_first() -> None:
    world = GroupWorld()
    assert world.is_parked(world.join(instance_id="one", version=5))
    assert member_of(world) == "one-1"


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    world = GroupWorld()
    _, two = static_pair(world)
    reply = world.joined(world.join(instance_id="two"))
    assert (reply.error, reply.generation, reply.members) == (ErrorCode.NONE, 1, ())
    assert reply.member_id not in ("two", two)
    assert world.state is GroupState.STABLE
    sync = world.sync(reply.member_id, 1, instance_id="two")
    assert world.synced(sync).assignment == b"for two"
    stored = world.log[-1]
    assert isinstance(stored, GroupStored)
    assert reply.member_id in [member.member_id for member in stored.group.members]
    assert world.heartbeat(two, 1, "two") is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", [5, 9])
def test_a_static_leader_that_comes_back_does_not_assign_again(version: int) -> None:
    """From version 9 on the answer tells the leader to skip the assignment. Before, the answer
    names its former member id as the leader."""
    world = GroupWorld()
    one, _ = static_pair(world)
    reply = world.joined(world.join(instance_id="one", version=version))
    assert world.group.leader == reply.member_id
    assert reply.skip_assignment == (version == 9)
    assert reply.leader == (reply.member_id if version == 9 else one)
    assert len(reply.members) == (2 if version == 9 else 0)


def test_a_static_member_that_changes_the_winning_protocol_starts_a_rebalance() -> None:
    world = GroupWorld()
    both = protocols("range", "sticky")
    tokens = [world.join(instance_id=name, protocols=both) for name in ("one", "two")]
    world.advance(2 * DELAY_MS)
    one, two = (world.joined(token).member_id for token in tokens)
    world.sync(one, 1, {}, instance_id="one")
    assert world.is_parked(world.join(instance_id="two", protocols=protocols("sticky")))
    assert world.state is GroupState.PREPARING_REBALANCE
    assert two not in world.group.members


def test_a_static_member_that_comes_back_before_the_assignment_starts_a_rebalance() -> None:
    """The leader may know the member by its old id, and would assign to that id."""
    world = GroupWorld()
    tokens = [world.join(instance_id=name) for name in ("one", "two")]
    world.advance(2 * DELAY_MS)
    one, two = (world.joined(token).member_id for token in tokens)
    waiting = world.sync(two, 1, instance_id="two")
    back = world.join(instance_id="two")
    assert world.synced(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert world.is_parked(back)
    assert world.state is GroupState.PREPARING_REBALANCE
    world.join(one, instance_id="one")
    assert world.joined(back).generation == 2


def test_a_static_member_that_comes_back_while_it_waits_fences_the_first() -> None:
    world = GroupWorld()
    first = world.join(instance_id="one")
    second = world.join(instance_id="one")
    assert world.joined(first).error is ErrorCode.FENCED_INSTANCE_ID
    world.advance(DELAY_MS)
    assert world.joined(second).generation == 1
    assert len(world.group.members) == 1


def test_a_static_member_that_comes_back_while_it_waits_has_the_rebalance_to_wait_for() -> None:
    """Others may take longer to join than its session lasts. It sends no heartbeat meanwhile."""
    world = GroupWorld()
    (slow,) = world.stable(session_ms=10 * SESSION_MS)
    world.join(instance_id="one")
    world.advance(1)
    back = world.join(instance_id="one")
    world.advance(2 * SESSION_MS)
    assert world.is_parked(back)
    world.join(slow)
    assert world.joined(back).error is ErrorCode.NONE


def test_a_static_member_survives_a_missed_join_until_its_session_expires() -> None:
    world = GroupWorld()
    tokens = [world.join(instance_id=name, session_ms=200_000) for name in ("one", "two")]
    world.advance(2 * DELAY_MS)
    one, two = (world.joined(token).member_id for token in tokens)
    world.sync(one, 1, {}, instance_id="one")
    world.sync(two, 1, instance_id="two")
    again = world.join(one, instance_id="one", session_ms=200_000)
    world.advance(REBALANCE_MS)
    assert {each.instance_id for each in world.joined(again).members} == {"one", "two"}


def test_the_member_of_an_instance_is_checked() -> None:
    world = GroupWorld()
    one, two = static_pair(world)
    assert world.join_refused(one, instance_id="two") is ErrorCode.FENCED_INSTANCE_ID
    assert world.join_refused(one, instance_id="three") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join_refused(two, instance_id="two") is ErrorCode.NONE


def test_a_late_static_member_without_time_to_join_again_keeps_no_broker_busy() -> None:
    """A timer of no length that begins anew would fire until the member's session ends, and the
    broker could do nothing else."""
    world = GroupWorld()
    world.join(instance_id="i", rebalance_ms=0)
    world.join()
    world.advance(2 * DELAY_MS)
    late, other = world.group.members
    world.sync(late, 1)
    world.sync(other, 1)
    world.leave(other)
    assert world.machine.tick(world.now) is not None
    assert world.machine.tick(world.now) is None
    assert world.state is GroupState.PREPARING_REBALANCE
    again = world.join(late, instance_id="i", rebalance_ms=0)
    assert world.joined(again).generation == 2


def test_an_id_that_was_given_out_does_not_become_static() -> None:
    world = GroupWorld()
    given = world.joined(world.join(version=4)).member_id
    assert world.join_refused(given, instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID


# Stored records.


def test_a_generation_is_stored_with_its_assignment_not_before() -> None:
    world = GroupWorld()
    (leader,) = world.completing()
    assert not world.log
    world.sync(leader, 1, {leader: b"assigned"})
    (record,) = world.log
    assert isinstance(record, GroupStored)
    assert record.group_id == GROUP
    assert record.group.leader == leader
    assert record.group.members[0].subscription == RANGE[0].metadata
    assert record.group.members[0].assignment == b"assigned"
