"""Static members of consumer groups leave, come back and are replaced."""

from __future__ import annotations

from tests.unit.coordinator.group.consumer_world import SESSION_MS, ConsumerWorld
from tidelog.protocol.error_codes import ErrorCode


def test_a_static_member_goes_away_and_comes_back_to_its_partitions(world: ConsumerWorld) -> None:
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


def test_a_static_member_that_stays_away_is_removed(world: ConsumerWorld) -> None:
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


def test_a_static_member_whose_first_answer_was_lost_asks_again(world: ConsumerWorld) -> None:
    """With UNRELEASED_INSTANCE_ID, as if another client had its instance id, it would give up."""
    first = world.consumer("a", instance_id="i")
    again = world.enter("a", instance_id="i")
    assert (again.error, again.member_epoch) == (ErrorCode.NONE, first.epoch)
    assert again.assignment == first.owned


def test_a_static_member_that_begins_anew_without_leaving_waits_for_its_session_to_end(
    world: ConsumerWorld,
) -> None:
    """As a dynamic one does. No other client has its instance id."""
    first, second = world.consumer("a", instance_id="i"), world.consumer("b")
    world.settle(first, second)
    assert world.enter("a", instance_id="i").error is ErrorCode.FENCED_MEMBER_EPOCH
    world.advance(SESSION_MS)
    assert world.enter("a", instance_id="i").error is ErrorCode.NONE


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
