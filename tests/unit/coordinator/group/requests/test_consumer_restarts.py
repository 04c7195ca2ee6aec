"""A consumer group continues at the next coordinator, from the log or from a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.coordinator.group.consumer_world import SESSION_MS, ConsumerWorld
from tests.unit.coordinator.group.group_world import GROUP
from tidelog.coordinator.group.records.consumer_records import MemberState
from tidelog.protocol.error_codes import ErrorCode


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


def test_members_that_never_come_back_after_a_restart_are_removed(world: ConsumerWorld) -> None:
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


def test_a_revoking_member_has_its_whole_timeout_after_a_restart(
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
    """The newest record of each key stays, at its offset."""
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
