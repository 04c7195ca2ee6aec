"""ConsumerGroupHeartbeat: epochs, fences, static members, timeouts, subscriptions."""

from __future__ import annotations

from collections.abc import Sequence

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


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld()


# Requests that are wrong whatever the group is like.


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


def test_who_joins_must_not_have_anything(world: ConsumerWorld) -> None:
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


# Joining.


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
    # The first still has them, whatever else it says.
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
    # A static member that is back takes its own place.
    assert world.enter("d", instance_id="i").error is ErrorCode.NONE


# Epochs.


def test_who_is_ahead_is_fenced(world: ConsumerWorld) -> None:
    world.consumer("m")
    reply = world.beat("m", 2, owned={})
    assert reply.error is ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch (2)" in (reply.message or "")


def test_an_answer_may_have_been_lost(world: ConsumerWorld) -> None:
    """The epoch before is accepted from a member that has nothing that it was not given."""
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


def test_who_is_no_member(world: ConsumerWorld) -> None:
    world.consumer("a")
    for epoch in (1, -1):
        reply = world.beat("b", epoch)
        assert (reply.error, reply.message) == (
            ErrorCode.UNKNOWN_MEMBER_ID,
            "Member b is not a member of group g.",
        )


# Leaving, and falling silent.


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


def test_a_member_that_is_not_heard_of_is_put_out(world: ConsumerWorld) -> None:
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
    # They are the default again, and the session that has begun ends as it would have.
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


def test_a_member_that_does_not_give_up_what_it_must_is_put_out(world: ConsumerWorld) -> None:
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


# Static members.


def test_a_static_member_goes_away_and_comes_back_to_what_it_had(world: ConsumerWorld) -> None:
    first, second = world.consumer("a", instance_id="i"), world.consumer("b")
    world.settle(first, second)
    assert first.go_away().member_epoch == -2
    world.advance(SESSION_MS - 1)
    second.beat()
    assert (second.epoch, second.has()) == (2, [2, 3])
    back = world.consumer("c", instance_id="i")
    assert (back.epoch, back.has()) == (2, [0, 1])
    assert world.describe_consumers().state == "Stable"
    assert [each.member_id for each in world.describe_consumers().members] == ["b", "c"]


def test_a_static_member_that_stays_away_is_put_out(world: ConsumerWorld) -> None:
    first, second = world.consumer("a", instance_id="i"), world.consumer("b")
    world.settle(first, second)
    first.go_away()
    world.advance(SESSION_MS - 1)
    second.beat()
    world.advance(1)
    second.beat()
    assert second.has() == [0, 1, 2, 3]


def test_an_instance_id_is_one_members_at_a_time(world: ConsumerWorld) -> None:
    first = world.consumer("a", instance_id="i")
    reply = world.enter("b", instance_id="i")
    assert reply.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.beat("b", 1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("b", -1, instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("a", 1, instance_id="j").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("a", -2, instance_id="j").error is ErrorCode.UNKNOWN_MEMBER_ID
    first.beat()
    assert first.error is ErrorCode.NONE


def test_a_static_member_that_was_replaced_is_fenced(world: ConsumerWorld) -> None:
    first = world.consumer("a", instance_id="i")
    first.go_away()
    world.consumer("b", instance_id="i")
    first.beat()
    assert first.error is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_is_away_is_not_heard(world: ConsumerWorld) -> None:
    first = world.consumer("a", instance_id="i")
    first.go_away()
    first.beat()
    assert first.error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_static_member_comes_back_under_its_own_id(world: ConsumerWorld) -> None:
    first = world.consumer("a", instance_id="i")
    first.go_away()
    first.join()
    assert (first.error, first.epoch, first.has()) == (ErrorCode.NONE, 1, [0, 1, 2, 3])


def test_a_static_member_comes_back_with_another_subscription(world: ConsumerWorld) -> None:
    first = world.consumer("a", instance_id="i")
    first.go_away()
    back = world.consumer("b", instance_id="i", names=["u"])
    assert (back.epoch, back.has("t"), back.has("u")) == (2, [], [0, 1])


def test_a_member_that_enters_with_another_instance_id_gives_up_the_first(
    world: ConsumerWorld,
) -> None:
    world.consumer("a", instance_id="i")
    assert world.enter("a", instance_id="j").error is ErrorCode.NONE
    assert world.consumer_group.static_members == {"j": "a"}
    assert world.enter("b", instance_id="i").error is ErrorCode.NONE


def test_a_static_member_that_leaves_for_good_is_gone(world: ConsumerWorld) -> None:
    first = world.consumer("a", instance_id="i")
    assert first.leave().member_epoch == -1
    assert world.describe_consumers().members == []
    assert world.enter("b", instance_id="i").error is ErrorCode.NONE


# Subscriptions and topics.


def test_a_member_subscribes_to_something_else(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    client.hear(world.beat("m", 1, owned=client.owned, names=["u", "u"]))
    assert client.epoch == 1
    assert client.owned == {}
    client.beat()
    assert (client.epoch, client.has("u")) == (2, [0, 1])


def test_topics_come_grow_and_go(world: ConsumerWorld) -> None:
    client = world.consumer("m", names=["t", "later"])
    world.create(later=1)
    world.settle(client)
    assert (client.epoch, client.has("t"), client.has("later")) == (2, [0, 1, 2, 3], [0])
    world.grow("t", 6)
    world.settle(client)
    assert (client.epoch, client.has("t")) == (3, [0, 1, 2, 3, 4, 5])
    world.drop("later")
    world.settle(client)
    assert client.epoch == 4
    assert client.owned == world.place(t=range(6))


def test_a_topic_that_was_created_anew_is_another_one(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    old = world.id_of("t")
    world.create(t=4)
    world.settle(client)
    assert client.has() == [0, 1, 2, 3]
    assert old not in client.owned


def test_topics_that_nobody_subscribes_to_do_not_matter(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    before = len(world.log)
    world.create(other=3)
    client.beat()
    assert (client.epoch, len(world.log)) == (1, before)


def test_an_expression_names_topics_that_are_and_will_be(world: ConsumerWorld) -> None:
    world.create(flights_a=1, flights_b=1)
    client = world.consumer("m", regex="flights_.*")
    assert set(client.owned) == {world.id_of("flights_a"), world.id_of("flights_b")}
    world.create(flights_c=1, not_flights_d=1)
    world.settle(client)
    assert (client.epoch, client.has("flights_c"), client.has("not_flights_d")) == (2, [0], [])
    world.drop("flights_a")
    world.settle(client)
    assert set(client.owned) == {world.id_of("flights_b"), world.id_of("flights_c")}


def test_an_expression_and_names_add_up(world: ConsumerWorld) -> None:
    client = world.consumer("m", regex="u", names=["t"])
    assert (client.has("t"), client.has("u")) == ([0, 1, 2, 3], [0, 1])
    client.hear(world.beat("m", 1, owned=client.owned, regex=""))
    world.settle(client)
    assert (client.has("t"), client.has("u")) == ([0, 1, 2, 3], [])
    assert world.member("m").subscription.topic_regex is None


def test_members_vote_for_the_assignor(world: ConsumerWorld) -> None:
    first = world.consumer("a", assignor="range", names=["t", "u"])
    second = world.consumer("b", assignor="range", names=["t", "u"])
    world.settle(first, second)
    assert world.describe_consumers().assignor == "range"
    assert (first.has("t"), first.has("u")) == ([0, 1], [0])
    assert (second.has("t"), second.has("u")) == ([2, 3], [1])


def test_the_first_assignor_is_taken_where_nobody_asks() -> None:
    world = ConsumerWorld(GroupSettings(consumer_assignors=("range", "uniform")))
    world.consumer("a")
    assert world.describe_consumers().assignor == "range"


# The coordinator dies.


def test_members_go_on_after_a_restart_as_if_nothing_had_been(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b", instance_id="i", regex="t|u")
    world.settle(first, second)
    before = world.describe_consumers()
    world.restart()
    assert world.describe_consumers() == before
    epochs, length = (first.epoch, second.epoch), len(world.log)
    world.settle(first, second)
    assert (first.epoch, second.epoch) == epochs
    assert len(world.log) == length


def test_members_that_never_come_back_after_a_restart_are_put_out(world: ConsumerWorld) -> None:
    world.consumer("a")
    world.restart()
    world.advance(SESSION_MS)
    assert world.describe_consumers().state == "Empty"


def test_a_rebalance_goes_on_after_a_restart(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b")
    first.beat()
    world.restart()
    assert world.member("a").current.state is MemberState.UNREVOKED_PARTITIONS
    world.settle(first, second)
    assert (first.has(), second.has()) == ([0, 1], [2, 3])


def test_who_had_to_give_something_up_has_its_time_again_after_a_restart(
    world: ConsumerWorld,
) -> None:
    first = world.consumer("a", rebalance_ms=1000)
    world.enter("b")
    first.ask()
    world.restart()
    world.advance(1000)
    assert world.beat("a", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_snapshot_makes_the_same_group(world: ConsumerWorld) -> None:
    first, second = world.consumer("a"), world.consumer("b", instance_id="i")
    world.settle(first, second)
    third = world.consumer("c")
    before = world.describe_consumers()
    captured = list(world.machine.capture())
    world.machine.release()
    world.log = captured
    world.restart()
    assert world.describe_consumers() == before
    world.settle(first, second, third)
    assert sorted(first.has() + second.has() + third.has()) == [0, 1, 2, 3]


def test_the_order_that_compaction_leaves_does_not_matter(world: ConsumerWorld) -> None:
    """The newest record of each key stays, where it is."""
    first, second = world.consumer("a"), world.consumer("b", instance_id="i")
    world.settle(first, second)
    before = world.describe_consumers()
    world.log = sorted(captured_with_reverse_order(world), key=lambda each: type(each).__name__)
    world.restart()
    found = world.describe_consumers()
    assert sorted(found.members) == sorted(before.members)
    assert (found.epoch, found.assignment_epoch) == (before.epoch, before.assignment_epoch)


def captured_with_reverse_order(world: ConsumerWorld) -> Sequence[object]:
    captured = list(world.machine.capture())
    world.machine.release()
    return captured[::-1]


def test_the_group_is_named_in_each_record(world: ConsumerWorld) -> None:
    world.consumer("a")
    assert {each.group_id for each in world.log} == {GROUP}  # type: ignore[union-attr]
