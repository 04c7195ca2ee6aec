"""OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups; expiry of offsets, and restarts."""

from __future__ import annotations

import struct

import pytest

from tests.unit.coordinator.group.group_world import (
    GROUP,
    NEW,
    OLD,
    REBALANCE_MS,
    SESSION_MS,
    GroupWorld,
)
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteOffsets,
    DeleteReply,
    ErrorReply,
    FetchOffsets,
    ForgetTopics,
    ListGroups,
    ListGroupsReply,
    OffsetsReply,
    PartitionErrors,
)
from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    GroupRemoved,
    OffsetRemoved,
    OffsetStored,
)
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.group.requests.group_offsets import SINK_PROGRESS_TOPIC
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode

DAY_MS = 24 * 3600 * 1000
SWEEP_MS = GroupSettings().offsets_check_interval_ms


def subscription(*topics: str) -> tuple[SupportedProtocol, ...]:
    """A consumer's subscription in version 1, without further fields."""
    metadata = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        metadata += struct.pack(">h", len(topic)) + topic.encode()
    return (SupportedProtocol("range", metadata + struct.pack(">ii", -1, 0)),)


def delete_offset(world: GroupWorld, topic: str = "t") -> PartitionErrors:
    return world.ask(DeleteOffsets(GROUP, [(topic, 0)]), PartitionErrors)


def stay(world: GroupWorld, member: str, days: int) -> None:
    """Days pass, in which the member sends heartbeats now and then."""
    for _ in range(days * 96):
        assert world.heartbeat(member, 1) is ErrorCode.NONE
        world.advance(DAY_MS // 96)


def delete_group(world: GroupWorld) -> ErrorCode:
    return world.ask(DeleteGroup(GROUP), DeleteReply).error


# The table: OffsetCommit.


def test_a_client_without_membership_commits_to_an_empty_group() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.leave(member)
    assert world.commit(5) is ErrorCode.NONE
    assert world.committed() == 5


def test_a_member_of_before_does_not_commit_to_an_empty_group() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.leave(member)
    assert world.commit(5, member, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() is None


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        ("preparing", ErrorCode.NONE),
        ("completing", ErrorCode.REBALANCE_IN_PROGRESS),
        ("stable", ErrorCode.NONE),
    ],
)
def test_a_member_commits_except_between_join_and_assignment(begin: str, error: ErrorCode) -> None:
    world = GroupWorld()
    if begin == "preparing":
        (member,) = world.stable()
        world.join()
    else:
        (member,) = getattr(world, begin)()
    assert world.commit(5, member, 1) is error
    assert world.committed() == (5 if error is ErrorCode.NONE else None)


@pytest.mark.parametrize("begin", ["preparing", "stable"])
def test_a_commit_renews_the_session(begin: str) -> None:
    world = GroupWorld()
    (member,) = world.stable()
    if begin == "preparing":
        world.join()
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        assert world.commit(5, member, 1) is ErrorCode.NONE
    assert world.heartbeat(member, 1) is not ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
def test_an_unknown_member_does_not_commit_to_a_group_with_members(begin: str) -> None:
    world = GroupWorld()
    getattr(world, begin)()
    assert world.commit(5) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(5, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() is None


def test_a_member_of_an_older_generation_does_not_commit() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.join(member)
    assert world.group.generation == 2
    assert world.commit(5, member, 1) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(
    ("version", "error"),
    [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)],
)
def test_a_generation_of_a_group_that_does_not_exist(version: int, error: ErrorCode) -> None:
    world = GroupWorld()
    assert world.commit(5, "m", 3, version=version) is error
    assert not world.machine.groups
    assert not world.log


def test_a_first_commit_from_outside_makes_a_group() -> None:
    world = GroupWorld()
    assert world.commit(5) is ErrorCode.NONE
    assert world.describe().state == "Empty"
    committed = CommittedOffset(5, 5, "", world.now.time_ms)
    assert world.log == [OffsetStored(GROUP, "t", 0, committed)]


def test_metadata_have_a_limit() -> None:
    world = GroupWorld()
    assert world.commit(5, metadata="ü" * 4096) is ErrorCode.NONE
    assert world.commit(6, metadata="ü" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.committed() == 5


# OffsetFetch.


def test_a_partition_without_a_commit_has_no_offset() -> None:
    world = GroupWorld()
    world.commit(5)
    reply = world.ask(FetchOffsets(GROUP, {"t": [0, 1], "u": [0]}), OffsetsReply)
    assert reply.topics["t"][1] is None
    assert reply.topics["u"] == {0: None}
    assert world.committed(group_id="other") is None


def test_all_offsets_of_a_group() -> None:
    world = GroupWorld()
    world.commit(5)
    world.commit(6, topic="u")
    reply = world.ask(FetchOffsets(GROUP, None), OffsetsReply)
    found = {
        topic: {p: o and o.offset for p, o in each.items()} for topic, each in reply.topics.items()
    }
    assert found == {"t": {0: 5}, "u": {0: 6}}
    assert world.ask(FetchOffsets("other", None), OffsetsReply).topics == {}


# OffsetDelete.


def test_offsets_of_a_group_without_members_are_deleted() -> None:
    world = GroupWorld()
    world.commit(5)
    assert delete_offset(world).partitions == [("t", 0, ErrorCode.NONE)]
    assert world.committed() is None
    assert world.log[-1] == OffsetRemoved(GROUP, "t", 0)
    before = len(world.log)
    assert delete_offset(world).partitions == [("t", 0, ErrorCode.NONE)]
    assert len(world.log) == before


def test_offsets_in_topics_that_members_consume_stay() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit(5, topic="u")
    world.stable(protocols=subscription("t"))
    assert delete_offset(world, "t").partitions[0][2] is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offset(world, "u").partitions[0][2] is ErrorCode.NONE


def test_members_whose_subscription_cannot_be_read_may_consume_anything() -> None:
    world = GroupWorld()
    world.commit(5)
    world.stable()
    assert delete_offset(world).partitions[0][2] is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_other_groups_with_members_and_missing_ones_are_refused_as_a_whole() -> None:
    world = GroupWorld()
    assert delete_offset(world).error is ErrorCode.GROUP_ID_NOT_FOUND
    world.stable(protocol_type="connect")
    assert delete_offset(world).error is ErrorCode.NON_EMPTY_GROUP


# DeleteGroups, DescribeGroups, ListGroups.


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    world = GroupWorld()
    world.commit(5)
    (member,) = world.stable()
    assert delete_group(world) is ErrorCode.NON_EMPTY_GROUP
    world.leave(member)
    assert delete_group(world) is ErrorCode.NONE
    assert world.log[-2:] == [OffsetRemoved(GROUP, "t", 0), GroupRemoved(GROUP)]
    assert delete_group(world) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.committed() is None
    world.restart()
    assert not world.machine.groups


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
def test_a_group_with_members_is_not_deleted(begin: str) -> None:
    world = GroupWorld()
    getattr(world, begin)()
    assert delete_group(world) is ErrorCode.NON_EMPTY_GROUP


def test_a_stable_group_is_described_with_its_assignment() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    found = world.describe()
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "range")
    assert found.members[0].member_id == member
    assert found.members[0].metadata == b"range metadata"
    assert found.members[0].assignment == f"assigned {member}".encode()
    assert (found.members[0].client_id, found.members[0].client_host) == ("client", "/host")


def test_a_group_that_rebalances_is_described_without() -> None:
    world = GroupWorld()
    world.completing()
    found = world.describe()
    assert (found.state, found.protocol) == ("CompletingRebalance", "")
    assert (found.members[0].metadata, found.members[0].assignment) == (b"", b"")


def test_a_group_that_does_not_exist_is_dead() -> None:
    found = GroupWorld().describe()
    assert (found.error, found.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_groups_are_listed_by_state() -> None:
    world = GroupWorld()
    world.stable()
    world.commit(5, group_id="simple")

    def listed(*states: str) -> list[tuple[str, str, str, str]]:
        return list(world.ask(ListGroups(frozenset(states)), ListGroupsReply).groups)

    stable, simple = ("g", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")
    assert listed() == [stable, simple]
    assert listed("sTaBlE") == [stable]
    assert listed("Empty", "Dead") == [simple]


# Expiry.


def test_a_group_that_only_holds_offsets_loses_each_after_the_retention() -> None:
    world = GroupWorld()
    world.commit(5, topic="old")
    world.advance(DAY_MS)
    world.commit(6, topic="young")
    world.advance(6 * DAY_MS + SWEEP_MS)
    assert (world.committed("old"), world.committed("young")) == (None, 6)
    world.advance(DAY_MS)
    assert GROUP not in world.machine.groups
    assert [type(each) for each in world.log[-2:]] == [OffsetRemoved, OffsetRemoved]


def test_the_progress_of_a_sink_is_kept_however_long_it_rests() -> None:
    """A query that resumes after a year must learn that its last batch is committed."""
    world = GroupWorld()
    world.commit(7, topic=SINK_PROGRESS_TOPIC)
    world.advance(400 * DAY_MS)
    assert world.committed(SINK_PROGRESS_TOPIC) == 7
    assert GROUP in world.machine.groups


def test_a_group_that_lost_its_members_keeps_its_offsets_from_then_on() -> None:
    world = GroupWorld()
    (member,) = world.stable(session_ms=1_800_000)
    world.commit(5, member, 1)
    stay(world, member, 10)
    world.leave(member)
    world.advance(7 * DAY_MS - SWEEP_MS)
    assert world.committed() == 5
    world.advance(2 * SWEEP_MS)
    assert world.committed() is None
    assert world.log[-1] == GroupRemoved(GROUP)


def test_a_group_with_members_loses_only_offsets_of_topics_it_no_longer_consumes() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit(6, topic="u")
    (member,) = world.stable(protocols=subscription("t"), session_ms=1_800_000)
    stay(world, member, 8)
    assert (world.committed("t"), world.committed("u")) == (5, None)


def test_members_with_unknown_subscriptions_keep_all_offsets() -> None:
    world = GroupWorld()
    world.commit(5)
    (member,) = world.stable(session_ms=1_800_000)
    stay(world, member, 8)
    assert world.committed() == 5


def test_an_offset_with_its_own_retention_expires_by_that_retention() -> None:
    """In OffsetCommit up to version 4 the retention counts from the commit, and overrides the
    broker's setting."""
    world = GroupWorld()
    world.commit(5, topic="short", retention_ms=SWEEP_MS // 2)
    world.commit(6, topic="long", retention_ms=30 * DAY_MS)
    world.advance(SWEEP_MS)
    assert (world.committed("short"), world.committed("long")) == (None, 6)
    world.advance(29 * DAY_MS)
    assert world.committed("long") == 6
    world.advance(DAY_MS)
    assert world.committed("long") is None


def test_an_empty_group_without_offsets_goes_with_the_next_sweep() -> None:
    world = GroupWorld()
    (member,) = world.stable()
    world.leave(member)
    world.advance(SWEEP_MS)
    assert GROUP not in world.machine.groups
    assert world.log[-1] == GroupRemoved(GROUP)


def test_a_group_with_a_joining_member_is_not_swept() -> None:
    world = GroupWorld()
    world.advance(SWEEP_MS - 1)
    given = world.joined(world.join(version=4)).member_id
    world.advance(1)
    assert world.is_parked(world.join(given, version=4))


def test_offsets_in_deleted_topics_are_forgotten() -> None:
    world = GroupWorld()
    world.commit(5, topic="t")
    world.commit(6, topic="u")
    world.commit(7, topic="t", group_id="h")
    world.ask(ForgetTopics({"t": {OLD}}), ErrorReply)
    assert (world.committed("t"), world.committed("u")) == (None, 6)
    assert world.committed("t", "h") is None


def test_offsets_in_the_topic_that_has_the_name_now_are_not() -> None:
    world = GroupWorld()
    world.commit(5, topic="t", topic_id=NEW)
    world.ask(ForgetTopics({"t": {OLD}}), ErrorReply)
    assert world.committed("t") == 5
    world.ask(ForgetTopics({"t": {OLD, NEW}}), ErrorReply)
    assert world.committed("t") is None


def test_topics_deleted_without_a_coordinator_are_forgotten_at_the_load() -> None:
    world = GroupWorld()
    world.commit(6, topic="u", topic_id=NEW)
    world.commit(7, topic="t")
    world.commit(8, topic="t", partition=1, topic_id=OLD)
    world.commit(9, topic="t", partition=2, topic_id=NEW)
    world.deleted.add(("t", OLD))
    world.restart()
    assert (world.committed("u"), world.committed("t", partition=2)) == (6, 9)
    assert world.committed("t", partition=1) is None
    # An offset committed by the first release belongs to the topic that has the name now.
    assert world.committed("t") == 7
    # If this record were lost, the next load would remove the offset again.
    assert world.log[-1:] == [OffsetRemoved(GROUP, "t", 1)]
    world.restart()
    assert world.log.count(OffsetRemoved(GROUP, "t", 1)) == 1
    world.deleted.add(("t", None))
    world.restart()
    assert (world.committed("t"), world.committed("t", partition=2)) == (None, 9)


def test_a_retention_without_end_has_none() -> None:
    world = GroupWorld()
    world.commit(5, retention_ms=2**63 - 1, version=4)
    world.restart()
    world.advance(30 * DAY_MS)
    assert world.committed() == 5


# Restart.


def test_groups_and_offsets_are_there_after_a_restart() -> None:
    world = GroupWorld()
    leader, follower = world.stable(2, protocols=subscription("t"))
    world.commit(5, leader, 1)
    world.commit(9, group_id="simple")
    before = world.describe()
    world.restart()
    assert world.state is GroupState.STABLE
    assert world.describe() == before
    assert (world.committed(), world.committed(group_id="simple")) == (5, 9)
    assert world.heartbeat(follower, 1) is ErrorCode.NONE
    assert world.synced(world.sync(follower, 1)).assignment == f"assigned {follower}".encode()
    assert world.group.leader == leader


def test_after_a_restart_members_have_a_session_to_be_heard_of() -> None:
    world = GroupWorld()
    _, follower = world.stable(2)
    world.advance(SESSION_MS - 1)
    world.restart()
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(follower, 1) is ErrorCode.NONE
    world.advance(1)
    assert list(world.group.members) == [follower]


def test_a_rebalance_that_was_under_way_is_begun_again_by_its_members() -> None:
    """The rebalance is not stored, so the members find the last generation, and join as before."""
    world = GroupWorld()
    (leader,) = world.stable()
    world.join()
    world.restart()
    assert world.state is GroupState.STABLE
    assert world.heartbeat(leader, 1) is ErrorCode.NONE
    newcomer = world.join()
    again = world.join(leader)
    assert world.joined(newcomer).generation == world.joined(again).generation == 2


def test_static_members_are_known_after_a_restart() -> None:
    world = GroupWorld()
    token = world.join(instance_id="one")
    world.advance(3_000)
    one = world.joined(token).member_id
    world.sync(one, 1, {one: b"x"}, instance_id="one")
    world.restart()
    assert world.heartbeat(one, 1, "one") is ErrorCode.NONE
    assert world.joined(world.join(instance_id="one")).generation == 1
    assert world.heartbeat(one, 1, "one") is ErrorCode.FENCED_INSTANCE_ID


def test_an_empty_group_goes_on_with_its_generation_after_a_restart() -> None:
    world = GroupWorld()
    world.stable()
    world.advance(SESSION_MS + REBALANCE_MS)
    world.restart()
    assert (world.state, world.group.generation) == (GroupState.EMPTY, 2)
    world.stable()
    assert world.group.generation == 3
