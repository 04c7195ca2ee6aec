"""Limits of the memory that clients use in group coordinators. Deleted state frees its share, and a
successor counts the same."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from tests.unit.coordinator.group.consumer_world import ConsumerWorld
from tests.unit.coordinator.group.group_world import GROUP, NEW, OLD, RANGE, GroupWorld
from tidelog.coordinator.budget import Budget
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteReply,
    ErrorReply,
    FetchOffsets,
    ForgetTopics,
    OffsetsReply,
)
from tidelog.coordinator.group.records.log_records import OffsetRemoved
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.group.requests.limits import GroupBudgets
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.sizes import (
    ASSIGNED_PARTITION_BYTES,
    GROUP_BYTES,
    OFFSET_BYTES,
    PENDING_BYTES,
    TOPIC_NAME_BYTES,
)
from tidelog.protocol.error_codes import ErrorCode

NONE = ErrorCode.NONE
HUGE = 2**40


def budgets(groups: int = HUGE, size_bytes: int = HUGE) -> GroupBudgets:
    return GroupBudgets(Budget(groups), Budget(size_bytes))


def saying(size: int) -> tuple[SupportedProtocol, ...]:
    return (SupportedProtocol("range", b"m" * size),)


def limits_met(world: GroupWorld) -> list[str]:
    return [each.setting for each in world.limits]


def delete(world: GroupWorld, group_id: str = GROUP) -> DeleteReply:
    return world.ask(DeleteGroup(group_id), DeleteReply)


# Ids.


def test_ids_have_a_length() -> None:
    world = GroupWorld(GroupSettings(id_length_max=10))
    long = "x" * 11
    assert world.join_refused(group_id=long) is ErrorCode.INVALID_GROUP_ID
    assert world.join_refused(long) is ErrorCode.INVALID_REQUEST
    assert world.join_refused(instance_id=long) is ErrorCode.INVALID_REQUEST
    assert world.commit(1, group_id=long) is ErrorCode.INVALID_GROUP_ID
    assert world.commit_in_transaction(1, group_id=long) is ErrorCode.INVALID_GROUP_ID
    assert limits_met(world) == ["id.length.max"] * 5
    assert "at most 10" in world.limits[0].why
    assert not world.machine.groups
    assert world.commit(1, group_id="x" * 10) is NONE


def test_ids_of_the_consumer_protocol_have_a_length() -> None:
    world = ConsumerWorld(GroupSettings(id_length_max=10))
    long = "x" * 11
    assert world.beat("m", 0, owned={}, names=["t"], rebalance_ms=1, group_id=long).error is (
        ErrorCode.INVALID_GROUP_ID
    )
    assert world.enter(long).error is ErrorCode.INVALID_REQUEST
    refused = world.enter("m", instance_id=long)
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert refused.message is not None
    assert "id.length.max" in refused.message
    assert GROUP not in world.machine.consumer_groups


def test_a_member_that_is_named_after_a_long_client_keeps_its_id() -> None:
    world = GroupWorld(GroupSettings(id_length_max=300))
    command = world.join_command(version=4)
    command = replace(command, client_id="c" * 30_000)
    given = world.joined(world.submit(command)).member_id
    assert len(given) < 300
    assert world.is_parked(world.join(given, version=4))


# Members.


def test_one_members_own_data_has_a_limit() -> None:
    world = GroupWorld(GroupSettings(member_bytes_max=10_000))
    assert world.join_refused(protocols=saying(10_000)) is ErrorCode.INVALID_REQUEST
    assert limits_met(world) == ["group.member.max.bytes"]
    assert GROUP not in world.machine.groups
    assert world.is_parked(world.join(protocols=saying(5_000)))


def test_a_subscription_has_a_limit() -> None:
    world = ConsumerWorld(GroupSettings(member_bytes_max=10_000))
    names = [f"topic-{number}" for number in range(1000)]
    assert world.enter("a", names=names).error is ErrorCode.INVALID_REQUEST
    client = world.consumer("a")
    refused = world.beat("a", client.epoch, names=names)
    assert refused.error is ErrorCode.INVALID_REQUEST
    assert "group.member.max.bytes" in (refused.message or "")
    client.beat()
    assert client.error is NONE


def test_the_members_of_a_group_have_a_limit_together() -> None:
    world = GroupWorld(GroupSettings(group_bytes_max=20_000))
    waiting = [world.join(protocols=saying(3_000)) for _ in range(10)]
    refused = [world.joined(each).error for each in waiting if not world.is_parked(each)]
    assert 3 <= len(waiting) - len(refused) <= 6
    assert set(refused) == {ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert set(limits_met(world)) == {"group.max.bytes"}
    assert world.group.size_bytes <= 20_000


def test_a_rebalance_does_not_wait_for_a_member_that_the_limit_keeps_out() -> None:
    world = GroupWorld(GroupSettings(group_bytes_max=50_000))
    (leader,) = world.stable(protocols=saying(1_000))
    member_id = world.joined(world.join(version=4)).member_id
    again = world.join(leader, protocols=saying(1_000))
    assert world.is_parked(again)
    refused = world.join_refused(member_id, protocols=saying(50_000), version=4)
    assert refused is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joined(again).generation == 2
    refused = world.join_refused(leader, protocols=saying(60_000))
    assert (refused, list(world.group.members)) == (ErrorCode.GROUP_MAX_SIZE_REACHED, [leader])


def test_a_member_of_a_full_group_joins_again_with_no_more_than_before() -> None:
    world = GroupWorld(GroupSettings(group_bytes_max=9_000))
    (member,) = world.stable(protocols=saying(5_000))
    assert world.join_refused(protocols=saying(5_000)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join_refused(member, protocols=saying(9_000)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joined(world.join(member, protocols=saying(5_001))).error is NONE


def test_a_static_member_of_a_full_group_comes_back() -> None:
    world = GroupWorld(GroupSettings(group_bytes_max=9_000))
    world.stable(protocols=saying(5_000), instance_id="i")
    assert world.join_refused(protocols=saying(5_000)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    again = world.join(protocols=saying(5_000), instance_id="i")
    assert world.is_parked(again) or world.joined(again).error is NONE


# All groups of a broker.


def test_the_groups_of_a_broker_are_limited() -> None:
    world = GroupWorld(budgets=budgets(groups=2))
    assert world.commit(1, group_id="a") is NONE
    assert world.is_parked(world.join(group_id="b"))
    busy = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.commit(1, group_id="c") is busy
    assert world.commit_in_transaction(1, group_id="c") is busy
    assert world.join_refused(group_id="c") is busy
    assert limits_met(world) == ["groups.max"] * 3
    assert world.commit(2, group_id="a") is NONE
    assert delete(world, "a").error is NONE
    assert world.commit(1, group_id="c") is NONE


def test_the_groups_of_a_broker_are_limited_over_both_protocols() -> None:
    world = ConsumerWorld(budgets=budgets(groups=1))
    client = world.consumer("a")
    assert client.error is NONE
    assert world.commit(1, group_id="other") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    other = world.beat("m", 0, owned={}, names=["t"], rebalance_ms=1, group_id="other")
    assert other.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.enter("b").error is NONE


def test_members_of_all_groups_have_a_limit_together() -> None:
    world = GroupWorld(budgets=budgets(size_bytes=50_000))
    tokens = [world.join(group_id=f"g{n}", protocols=saying(10_000)) for n in range(10)]
    refused = [world.joined(each).error for each in tokens if not world.is_parked(each)]
    assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 7
    assert set(limits_met(world)) == {"groups.max.bytes"}
    assert world.budgets.size_bytes.held <= 50_000


def test_assignments_of_leaders_have_a_limit_together() -> None:
    world = GroupWorld(budgets=budgets(size_bytes=20_000))
    leader, follower = world.completing(2)
    waiting = world.sync(follower, 1)
    token = world.sync(leader, 1, {leader: b"x" * 20_000})
    assert world.synced(token).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.synced(waiting).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert limits_met(world) == ["groups.max.bytes"]
    assert not world.log
    assert world.budgets.size_bytes.held < 20_000


@pytest.mark.parametrize("count", [100, 6_000])
def test_a_consumer_group_gets_no_partitions_where_there_is_no_room(count: int) -> None:
    """This holds even if a worker makes the target."""
    size = 2 * count * ASSIGNED_PARTITION_BYTES + 10_000
    world = ConsumerWorld(budgets=budgets(size_bytes=size))
    world.create(wide=count, other=count)
    first = world.consumer("a", names=["wide"])
    world.settle(first)
    assert sum(map(len, first.owned.values())) == count
    second = world.beat("b", 0, owned={}, names=["other"], rebalance_ms=1000, group_id="second")
    assert second.error is NONE
    later = world.beat("b", second.member_epoch, owned={}, group_id="second")
    assert not later.assignment
    assert set(limits_met(world)) == {"groups.max.bytes"}
    assert world.budgets.size_bytes.held <= size
    first.leave()
    assert delete(world).error is NONE
    world.advance(world.settings.work_timeout_ms)
    found = later
    for _ in range(3):
        found = world.beat("b", found.member_epoch, owned={}, group_id="second")
        if found.assignment:
            break
    assert found.assignment is not None
    assert sum(map(len, found.assignment.values())) == count


def test_a_full_broker_gives_a_dead_members_partitions_to_other_members() -> None:
    world = ConsumerWorld(budgets=budgets())
    clients = [world.consumer("a"), world.consumer("b")]
    world.settle(*clients)
    world.budgets.size_bytes.limit = 1
    for _ in range(world.settings.consumer_session_timeout_ms // 5_000 + 1):
        clients[0].beat()
        world.advance(5_000)
    world.settle(clients[0])
    assert sum(map(len, clients[0].owned.values())) == 4


def test_offsets_have_a_limit_together() -> None:
    world = GroupWorld(budgets=budgets(size_bytes=GROUP_BYTES + 100 + 10 * OFFSET_BYTES))
    answers = [world.commit(1, topic=f"t{number}") for number in range(15)]
    assert answers == [NONE] * 10 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 5
    assert world.commit(2, topic="t0") is NONE
    assert world.commit(2, topic="t0", metadata="x" * 500) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(limits_met(world)) == {"groups.max.bytes"}
    assert world.committed("t0") == 2


def test_pending_offsets_count_until_their_transaction_ends() -> None:
    world = GroupWorld(budgets=budgets(size_bytes=GROUP_BYTES + 100 + 4 * PENDING_BYTES))
    answers = [world.commit_in_transaction(1, topic=f"t{number}") for number in range(5)]
    assert answers == [NONE] * 4 + [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.end_transaction(commit=False)
    assert world.commit_in_transaction(1, topic="t9") is NONE


def test_coordinators_share_the_limits_of_a_broker() -> None:
    shared = budgets(groups=2)
    one, other = GroupWorld(budgets=shared), GroupWorld(budgets=shared)
    assert one.commit(1, group_id="a") is NONE
    assert one.commit(1, group_id="b") is NONE
    assert other.commit(1, group_id="c") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    one.machine.close()
    assert other.commit(1, group_id="c") is NONE


def test_a_log_with_more_than_the_limits_is_served() -> None:
    world = GroupWorld()
    (member,) = world.stable(protocols=saying(50_000))
    assert world.commit(1, member, 1) is NONE
    assert world.commit(1, group_id="second") is NONE
    world.settings = GroupSettings(group_bytes_max=1000)
    world.budgets = budgets(groups=1, size_bytes=1000)
    world.restart()
    assert world.heartbeat(member, 1) is NONE
    assert world.commit(2, member, 1) is NONE
    assert world.committed() == 2
    assert world.commit(1, member, 1, topic="new") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.joined(world.join(member, protocols=saying(50_000))).error is NONE


# Usage that counts against the limits.


def test_removed_groups_and_offsets_release_their_memory() -> None:
    world = GroupWorld(budgets=budgets())
    first, second = world.stable(2, protocols=saying(1000))
    world.commit(1, first, 1, metadata="m" * 100)
    world.commit(2, first, 1, metadata="m")
    world.commit_in_transaction(3, first, 1, producer_id=1, metadata="p" * 50)
    world.commit_in_transaction(4, first, 1, producer_id=2, metadata="p" * 60)
    world.commit_in_transaction(5, first, 1, producer_id=2, metadata="p")
    world.commit_in_transaction(6, first, 1, producer_id=1, topic="u", metadata="p" * 70)
    world.commit(7, first, 1, topic="u")
    assert _held(world) == _held_by_a_successor(world)
    world.end_transaction(1, commit=True)
    world.end_transaction(2, commit=False)
    assert _held(world) == _held_by_a_successor(world)
    world.leave(first, second)
    assert delete(world).error is NONE
    assert _held(world) == (0, 0)


def test_a_member_that_leaves_gives_its_memory_back() -> None:
    world = GroupWorld(budgets=budgets())
    world.preparing()
    alone = _held(world)
    second = world.join(protocols=saying(5000))
    assert _held(world)[1] > alone[1] + 5000
    assert world.is_parked(second)
    (other,) = [
        each for each in world.group.members.values() if len(each.protocols[0].metadata) > 99
    ]
    world.join(other.member_id, protocols=saying(6000))
    assert _held(world)[1] > alone[1] + 6000
    world.leave(other.member_id)
    assert _held(world) == alone


def test_protocols_that_no_member_supports_any_more_are_forgotten() -> None:
    world = GroupWorld()
    world.preparing()
    alone = len(pickle.dumps(world.group))
    for number in range(10):
        more = SupportedProtocol(f"{number}" * 1000, b"m")
        world.join(protocols=(*RANGE, more))
        member_id = list(world.group.members)[-1]
        world.join(member_id, protocols=(*RANGE, more._replace(name=f"{number}" * 2000)))
        world.leave(member_id)
    assert len(pickle.dumps(world.group)) < alone + 1000


def test_expressions_that_no_member_has_any_more_are_forgotten() -> None:
    world = ConsumerWorld(budgets=budgets())
    client = world.consumer("a", regex="u.*")
    alone = _held(world)
    for number in range(10):
        world.beat("a", client.epoch, regex=f"u.{{0,{number}}}")
        world.settle(client)
    world.beat("a", client.epoch, regex="u.*")
    world.settle(client)
    assert len(world.consumer_group.matches) <= 2
    assert _held(world)[1] - alone[1] <= TOPIC_NAME_BYTES
    world.check_usage()


def test_removed_consumers_release_their_memory() -> None:
    world = ConsumerWorld(budgets=budgets())
    clients = [world.consumer("a"), world.consumer("b", regex="u.*", instance_id="i")]
    world.settle(*clients)
    alone = _held(world)
    assert alone[0] == 1
    world.beat("a", clients[0].epoch, names=["t", "u"])
    world.settle(*clients)
    assert _held(world)[1] > alone[1]
    for client in clients:
        client.leave()
    world.advance(world.settings.consumer_session_timeout_ms)
    assert delete(world).error is NONE
    assert _held(world) == (0, 0)


def _held(world: GroupWorld) -> tuple[int, int]:
    return world.budgets.groups.held, world.budgets.size_bytes.held


def _held_by_a_successor(world: GroupWorld) -> tuple[int, int]:
    before, world.budgets = world.budgets, budgets()
    world.machine.close()
    assert (before.groups.held, before.size_bytes.held) == (0, 0)
    world.restart()
    return _held(world)


# The coordinator removes many members in parts.


def test_a_group_with_many_offsets_is_deleted_in_parts() -> None:
    world = GroupWorld(GroupSettings(removals_max=10))
    for number in range(25):
        world.commit(1, topic=f"t{number}")
    begun = len(world.log)
    replies = [delete(world) for _ in range(3)]
    assert [each.is_done for each in replies] == [False, False, True]
    assert {each.error for each in replies} == {NONE}
    assert len(world.log) == begun + 25
    assert GROUP not in world.machine.groups


def test_a_member_that_joins_meanwhile_waits_for_the_end_of_the_deletion() -> None:
    """Otherwise the group would stay, without some of its offsets."""
    world = _in_deletion()
    assert world.joined(world.join()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [delete(world).is_done for _ in range(2)] == [False, True]
    assert world.is_parked(world.join())
    assert [world.committed(f"t{number}") for number in range(25)] == [None] * 25


def test_a_consumer_that_joins_meanwhile_waits_for_the_end_of_the_deletion() -> None:
    world = ConsumerWorld(GroupSettings(removals_max=10))
    _begin_deletion(world)
    assert world.enter("m").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [delete(world).is_done for _ in range(2)] == [False, True]
    assert world.enter("m").error is NONE


def test_a_deletion_that_was_given_up_keeps_no_member_out() -> None:
    world = _in_deletion()
    world.advance(world.settings.work_timeout_ms)
    assert world.is_parked(world.join())
    assert delete(world).error is ErrorCode.NON_EMPTY_GROUP


def _in_deletion() -> GroupWorld:
    world = GroupWorld(GroupSettings(removals_max=10))
    _begin_deletion(world)
    return world


def _begin_deletion(world: GroupWorld) -> None:
    for number in range(25):
        world.commit(1, topic=f"t{number}")
    assert not delete(world).is_done


def test_offsets_in_deleted_topics_go_in_parts() -> None:
    world = GroupWorld(GroupSettings(removals_max=10))
    for number in range(25):
        world.commit(1, group_id=f"g{number}", topic_id=OLD)
    begun = len(world.log)
    world.ask(ForgetTopics({"t": {OLD}}), ErrorReply)
    assert len(world.log) == begun + 10
    world.advance(1)
    assert world.commit(7, group_id="g24", topic_id=NEW) is NONE
    world.advance(1000)
    removed = [each for each in world.log[begun:] if isinstance(each, OffsetRemoved)]
    assert len(removed) == 24
    assert world.committed("t", "g24") == 7


@pytest.mark.parametrize("is_loaded", [False, True])
def test_offsets_in_deleted_topics_are_not_told_before_their_turn_to_go(is_loaded: bool) -> None:
    """A topic that has the name by then does not begin at them."""
    world = GroupWorld(GroupSettings(removals_max=10))
    for number in range(25):
        world.commit(1, group_id=f"g{number}", topic_id=OLD)
        world.commit(2, group_id=f"g{number}", topic="u", topic_id=NEW)
    if is_loaded:
        world.deleted.add(("t", OLD))
        world.restart()
    else:
        world.ask(ForgetTopics({"t": {OLD}}), ErrorReply)
    for number in range(25):
        group_id = f"g{number}"
        assert (world.committed("t", group_id), world.committed("u", group_id)) == (None, 2)
        told = world.ask(FetchOffsets(group_id, None, False), OffsetsReply)
        assert list(told.topics) == ["u"]


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_a_removal_spares_the_new_topics_offset_of_an_open_transaction(
    is_committed: bool, commits: bool
) -> None:
    """The removal of a deleted topic's offset would take it with it."""
    world = GroupWorld(GroupSettings(removals_max=10))
    for number in range(25):
        world.commit(1, group_id=f"g{number}", topic_id=OLD)
    if is_committed:
        world.commit(5, topic_id=OLD)
    else:
        world.commit_in_transaction(5, producer_id=1, topic_id=OLD)
    world.ask(ForgetTopics({"t": {OLD}}), ErrorReply)
    assert world.commit_in_transaction(7, producer_id=2, topic_id=NEW) is NONE
    world.advance(1000)
    world.end_transaction(2, commit=commits)
    world.end_transaction(1, commit=True)
    for _ in range(2):
        assert world.committed() == (7 if commits else None)
        world.advance(1000)
    world.restart()
    assert world.committed() == (7 if commits else None)


def test_groups_are_swept_in_parts() -> None:
    world = GroupWorld(GroupSettings(sweep_groups_max=10, removals_max=7))
    for number in range(25):
        world.commit(1, group_id=f"g{number}", retention_ms=1, version=4)
    begun = len(world.log)
    world.advance(world.settings.offsets_check_interval_ms)
    assert 0 < len(world.log) - begun <= 7
    world.advance(5_000)
    assert len(world.log) - begun == 25
    assert not world.machine.groups


def test_a_sweep_goes_on_behind_a_consumer_group_that_takes_more_than_the_last_room() -> None:
    """The removal of such a group has more than one record."""
    world = ConsumerWorld(GroupSettings(removals_max=10))
    for group_id, count in (("g1", 1), ("g2", 9)):
        epoch = world.enter("m", group_id=group_id).member_epoch
        for number in range(count):
            assert world.commit(1, "m", epoch, topic=f"t{number}", group_id=group_id) is NONE
        world.beat("m", -1, group_id=group_id)
    settings = world.settings
    world.advance(settings.offsets_retention_ms + settings.offsets_check_interval_ms + 5_000)
    assert not world.machine.consumer_groups
    assert [world.committed("t0", group_id) for group_id in ("g1", "g2")] == [None, None]


@pytest.mark.parametrize("count", [1, 30])
def test_an_expired_offset_too_many_waits_for_the_next_part(count: int) -> None:
    world = GroupWorld(GroupSettings(removals_max=10))
    for number in range(count):
        world.commit(1, topic=f"t{number}", retention_ms=1, version=4)
    world.advance(world.settings.offsets_check_interval_ms + 5_000)
    assert GROUP not in world.machine.groups
