"""ConsumerGroupHeartbeat: requests that are wrong, joining, epochs, leaving, timeouts."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.consumer_world import (
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    ConsumerWorld,
)
from tests.unit.coordinator.group.group_world import GROUP
from tidelog.coordinator.group.records.consumer_records import (
    ConsumerGroupStored,
    ConsumerMemberRemoved,
    ConsumerMemberStored,
    CurrentRemoved,
    CurrentStored,
    MemberState,
    TargetEpochStored,
    TargetRemoved,
    TargetStored,
)
from tidelog.coordinator.group.settings import ConsumerTimeouts, GroupSettings
from tidelog.protocol.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("epoch", "options", "message"),
    [
        (1, {"group_id": ""}, "GroupId can't be empty."),
        (1, {"group_id": " "}, "GroupId can't be empty."),
        (1, {"instance_id": ""}, "InstanceId can't be empty."),
        (1, {"rack_id": ""}, "RackId can't be empty."),
        (-3, {}, "MemberEpoch is invalid."),
        (0, {"owned": {}, "names": ["t"]}, "RebalanceTimeoutMs must be provided"),
        (0, {"rebalance_ms": 1, "names": ["t"]}, "TopicPartitions must be empty"),
        (0, {"rebalance_ms": 1, "owned": {}}, "Either SubscribedTopicNames or"),
        (-2, {}, "InstanceId can't be null."),
    ],
)
def test_wrong_requests_change_nothing(
    world: ConsumerWorld, epoch: int, options: dict[str, object], message: str
) -> None:
    reply = world.beat("m", epoch, **options)  # type: ignore[arg-type]
    assert reply.error is ErrorCode.INVALID_REQUEST
    assert message in (reply.message or "")
    assert not world.log
    assert not world.machine.consumer_groups


def test_a_joining_member_must_own_no_partition(world: ConsumerWorld) -> None:
    reply = world.beat("m", 0, owned=world.place(t=[0]), rebalance_ms=1, names=["t"])
    assert reply.error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("epoch", "version"), [(0, 1), (1, 0), (1, 1), (-1, 0), (-2, 0)])
def test_members_have_ids(world: ConsumerWorld, epoch: int, version: int) -> None:
    reply = world.beat("", epoch, instance_id="i", version=version)
    assert (reply.error, reply.message) == (
        ErrorCode.INVALID_REQUEST,
        "MemberId can't be empty.",
    )


def test_the_first_version_leaves_the_choice_of_an_id_to_the_coordinator(
    world: ConsumerWorld,
) -> None:
    reply = world.enter("", version=0)
    assert (reply.error, reply.member_id, reply.member_epoch) == (ErrorCode.NONE, "fresh", 1)


def test_assignors_that_there_are_not(world: ConsumerWorld) -> None:
    reply = world.enter("m", assignor="sticky")
    assert reply.error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (reply.message or "")


def test_an_expression_that_is_too_long(world: ConsumerWorld) -> None:
    reply = world.enter("m", regex="t" * (GroupSettings().regex_length_max + 1))
    assert reply.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "regex.length.max" in (reply.message or "")
    assert not world.log


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_group_that_does_not_exist(world: ConsumerWorld, epoch: int) -> None:
    reply = world.beat("m", epoch)
    assert (reply.error, reply.message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Consumer group g not found.",
    )


def test_the_first_member_has_everything_at_once(world: ConsumerWorld) -> None:
    reply = world.enter("m")
    assert reply.error is ErrorCode.NONE
    assert (reply.member_id, reply.member_epoch) == ("m", 1)
    assert reply.heartbeat_interval_ms == HEARTBEAT_MS
    assert reply.assignment == world.place(t=range(4))
    assert [type(each) for each in world.log] == [
        ConsumerMemberStored,
        ConsumerGroupStored,
        TargetStored,
        TargetEpochStored,
        CurrentStored,
    ]
    assert world.describe_consumers().state == "Stable"


def test_a_heartbeat_without_news_writes_nothing_and_tells_nothing(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    before = len(world.log)
    reply = client.ask()
    assert (reply.error, reply.member_epoch, reply.assignment) == (ErrorCode.NONE, 1, None)
    assert len(world.log) == before


def test_a_full_heartbeat_is_told_everything(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    reply = world.beat("m", 1, owned=client.owned, rebalance_ms=REBALANCE_MS, names=["t"])
    assert reply.assignment == client.owned


def test_a_second_member_waits_until_the_first_has_given_up_its_half(
    world: ConsumerWorld,
) -> None:
    first = world.consumer("a")
    second = world.consumer("b")
    assert (second.epoch, second.has()) == (2, [])
    assert world.member("b").current.state is MemberState.UNRELEASED_PARTITIONS
    assert world.describe_consumers().state == "Reconciling"
    kept = first.ask()
    assert (kept.member_epoch, kept.assignment) == (1, world.place(t=[0, 1]))
    assert world.member("a").current.state is MemberState.UNREVOKED_PARTITIONS
    # The first member still has the partitions, whatever else its heartbeats say.
    assert world.beat("a", 1).member_epoch == 1
    second.beat()
    assert second.has() == []
    first.hear(kept)
    first.beat()
    assert (first.epoch, first.has()) == (2, [0, 1])
    second.beat()
    assert (second.epoch, second.has()) == (2, [2, 3])
    assert world.describe_consumers().state == "Stable"


def test_members_with_nothing_to_subscribe_to_are_members(world: ConsumerWorld) -> None:
    reply = world.enter("m", names=[])
    assert (reply.error, reply.member_epoch, reply.assignment) == (ErrorCode.NONE, 1, {})
    assert world.enter("n", names=["missing"]).assignment == {}


def test_a_group_has_room_for_so_many() -> None:
    world = ConsumerWorld(GroupSettings(consumer_members_max=2))
    world.consumer("a")
    second = world.consumer("b", instance_id="i")
    assert world.enter("c").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    second.beat()
    assert second.error is ErrorCode.NONE
    second.go_away()
    # A static member that comes back takes its former place.
    assert world.enter("d", instance_id="i").error is ErrorCode.NONE


def test_a_member_with_a_later_epoch_is_fenced(world: ConsumerWorld) -> None:
    world.consumer("m")
    reply = world.beat("m", 2, owned={})
    assert reply.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch (2)" in (reply.message or "")


def test_an_answer_may_have_been_lost(world: ConsumerWorld) -> None:
    """The coordinator accepts the previous epoch from a member that owns only assigned
    partitions."""
    first = world.consumer("a")
    world.enter("b")
    first.hear(first.ask())
    lost = first.ask()
    assert lost.member_epoch == 2
    assert first.epoch == 1
    assert world.beat("a", 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    too_much = world.beat("a", 1, owned=world.place(t=[0, 1, 2]))
    assert too_much.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert "smaller member epoch (1)" in (too_much.message or "")
    again = world.beat("a", 1, owned=world.place(t=[0]))
    assert (again.error, again.member_epoch) == (ErrorCode.NONE, 2)


def test_an_older_epoch_is_fenced(world: ConsumerWorld) -> None:
    first = world.consumer("a")
    second = world.consumer("b")
    world.settle(first, second)
    third = world.consumer("c")
    world.settle(first, second, third)
    assert first.epoch == 3
    assert world.beat("a", 1, owned={}).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_first_heartbeat_whose_answer_was_lost_is_repeated(world: ConsumerWorld) -> None:
    world.enter("m")
    reply = world.enter("m")
    assert (reply.error, reply.member_epoch) == (ErrorCode.NONE, 1)
    assert reply.assignment == world.place(t=range(4))


def test_an_unknown_member(world: ConsumerWorld) -> None:
    world.consumer("a")
    for epoch in (1, -1):
        reply = world.beat("b", epoch)
        assert (reply.error, reply.message) == (
            ErrorCode.UNKNOWN_MEMBER_ID,
            "Member b is not a member of group g.",
        )


def test_a_member_that_leaves_is_gone_at_once(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b")
    world.settle(first, second)
    before = len(world.log)
    reply = first.leave()
    assert (reply.error, reply.member_id, reply.member_epoch) == (ErrorCode.NONE, "a", -1)
    assert [type(each) for each in world.log[before:]] == [
        CurrentRemoved,
        TargetRemoved,
        ConsumerMemberRemoved,
        ConsumerGroupStored,
    ]
    assert world.describe_consumers().state == "Assigning"
    second.beat()
    assert (second.epoch, second.has()) == (3, [0, 1, 2, 3])


def test_the_last_member_leaves_an_empty_group(world: ConsumerWorld) -> None:
    world.consumer("a").leave()
    assert world.describe_consumers().state == "Empty"
    assert world.enter("b").member_epoch == 3


def test_a_member_without_heartbeats_is_removed(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b")
    world.settle(first, second)
    world.advance(SESSION_MS - 1)
    second.beat()
    world.advance(1)
    second.beat()
    assert second.has() == [0, 1, 2, 3]
    first.beat()
    assert first.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_groups_own_timeouts_hold_from_the_next_heartbeat_on(world: ConsumerWorld) -> None:
    consumer = world.consumer("a")
    world.timeouts[GROUP] = ConsumerTimeouts(2 * SESSION_MS, 2 * HEARTBEAT_MS)
    world.advance(SESSION_MS - 1)
    assert consumer.ask().heartbeat_interval_ms == 2 * HEARTBEAT_MS
    world.advance(2 * SESSION_MS - 1)
    assert consumer.ask().error is ErrorCode.NONE
    # The defaults apply again. The running session ends at the time that it had.
    del world.timeouts[GROUP]
    world.advance(2 * SESSION_MS - 1)
    assert consumer.ask().heartbeat_interval_ms == HEARTBEAT_MS
    world.advance(SESSION_MS)
    assert world.describe_consumers().members == []


def test_a_groups_own_timeouts_hold_for_members_that_a_successor_has_not_heard_of(
    world: ConsumerWorld,
) -> None:
    consumer = world.consumer("a")
    world.timeouts[GROUP] = ConsumerTimeouts(2 * SESSION_MS, HEARTBEAT_MS)
    world.restart()
    world.advance(2 * SESSION_MS - 1)
    assert consumer.ask().error is ErrorCode.NONE
    world.restart()
    world.advance(2 * SESSION_MS)
    assert consumer.ask().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_removed(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b")
    for _ in range(REBALANCE_MS // HEARTBEAT_MS):
        assert world.beat("a", 1, owned=world.place(t=range(4))).error is ErrorCode.NONE
        second.beat()
        assert second.has() == []
        world.advance(HEARTBEAT_MS)
    first.beat()
    assert first.error is ErrorCode.UNKNOWN_MEMBER_ID
    second.beat()
    assert second.has() == [0, 1, 2, 3]


def test_a_member_that_gave_up_in_time_stays(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b")
    world.settle(first, second)
    for _ in range(2 * REBALANCE_MS // HEARTBEAT_MS):
        world.advance(HEARTBEAT_MS)
        world.settle(first, second)
    assert (first.epoch, second.epoch) == (2, 2)
