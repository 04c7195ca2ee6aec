"""Consumer groups whose expressions and assignments take too long for the event loop."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.classic_client import ALL, ClassicClient, classic_group
from tests.unit.coordinator.group.consumer_world import HEARTBEAT_MS, ConsumerWorld, FakeConsumer
from tests.unit.coordinator.group.group_world import GROUP
from tests.unit.coordinator.group.requests.test_migration import settle
from tidelog.coordinator.group.assign import target_assignment
from tidelog.coordinator.group.assign.target_assignment import TargetTask, make_target
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteReply,
    PatternLookup,
    TargetMade,
)
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.consumer_group import ConsumerGroupState
from tidelog.protocol.error_codes import ErrorCode

INTERVAL_MS = GroupSettings().regex_lookup_interval_ms
TIMEOUT_MS = GroupSettings().work_timeout_ms


@pytest.fixture
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups with more than three partitions are large."""
    monkeypatch.setattr(target_assignment, "INLINE_PARTITIONS_MAX", 3)


def all_of(topic: str, *clients: FakeConsumer) -> list[int]:
    return sorted([number for client in clients for number in client.has(topic)])


# Regular expressions.


def test_topics_are_looked_up_again_no_sooner_than_a_while_after_the_last_time(
    world: ConsumerWorld,
) -> None:
    client = world.consumer("m", regex="fl.*")
    for number in range(5):
        world.create(**{f"flights_{number}": 1})
        client.beat()
    assert world.work_done == 1, "all of these came within a moment"
    world.advance(INTERVAL_MS)
    world.settle(client)
    assert (world.work_done, len(client.owned)) == (2, 5)


def test_expressions_are_not_resolved_while_topics_do_not_change(world: ConsumerWorld) -> None:
    world.create(flights=1)
    clients = [world.consumer(each, regex=f"fl.*|{each}") for each in "abc"]
    world.advance(INTERVAL_MS)
    world.settle(*clients)
    done = world.work_done
    for _ in range(5):
        world.advance(INTERVAL_MS)
        world.settle(*clients)
    assert world.work_done == done


def test_a_lookup_that_is_lost_is_asked_for_again(world: ConsumerWorld) -> None:
    client = world.consumer("m", regex="fl.*")
    world.create(flights=1)
    world.is_working = False
    client.beat()
    assert len(world.work) == 1
    world.work.clear()
    world.is_working = True
    world.settle(client)
    assert (world.work_done, client.has("flights")) == (0, [])
    world.advance(TIMEOUT_MS)
    world.settle(client)
    assert client.has("flights") == [0]


def test_members_keep_their_partitions_until_a_successor_has_resolved_expressions(
    world: ConsumerWorld,
) -> None:
    world.create(flights=2)
    first, second = world.consumer("a", regex="fl.*"), world.consumer("b", regex="fl.*")
    world.settle(first, second)
    before = first.owned, second.owned, first.epoch
    assert all_of("flights", first, second) == [0, 1]
    world.restart()
    world.is_working = False
    for client in (first, second, first, second):
        client.beat()
    assert (first.owned, second.owned, first.epoch) == before
    assert len(world.work) == 1
    world.do_work()
    world.settle(first, second)
    assert (first.owned, second.owned, first.epoch) == before


def test_a_member_joins_before_a_successor_has_resolved_expressions(
    world: ConsumerWorld,
) -> None:
    """The member is in the group at once, but gets no partitions until then."""
    world.create(flights=2)
    first = world.consumer("a", regex="fl.*")
    world.restart()
    world.is_working = False
    second = world.consumer("b", names=["t"])
    assert (second.error, second.owned) == (ErrorCode.NONE, {})
    assert world.consumer_group.state is ConsumerGroupState.ASSIGNING
    world.do_work()
    world.settle(first, second)
    assert (first.has("flights"), second.has("t")) == ([0, 1], [0, 1, 2, 3])


def test_a_classic_member_joins_before_a_successor_has_resolved_expressions(
    world: ConsumerWorld,
) -> None:
    world.create(flights=2)
    first = world.consumer("a", regex="fl.*")
    world.restart()
    world.is_working = False
    second = ClassicClient(world)
    second.enter()
    assert (second.error, second.has()) == (ErrorCode.NONE, []), "a heartbeat makes it join again"
    world.do_work()
    world.is_working = True
    settle(world, first, second)
    assert (first.has("flights"), second.has()) == ([0, 1], [0, 1, 2, 3])


# Targets.


@pytest.mark.usefixtures("_large")
def test_the_target_of_a_large_group_comes_with_a_later_heartbeat(world: ConsumerWorld) -> None:
    world.is_working = False
    first = world.consumer("a")
    assert (first.error, first.owned) == (ErrorCode.NONE, {})
    assert first.epoch > 0, "0 is that of a member that joins"
    world.do_work()
    first.beat()
    assert first.has("t") == [0, 1, 2, 3]
    world.is_working = True
    second = world.consumer("b")
    world.settle(first, second)
    assert (len(first.has("t")), len(second.has("t"))) == (2, 2)
    world.grow("t", 6)
    world.settle(first, second)
    assert all_of("t", first, second) == list(range(6))
    assert world.consumer_group.state is ConsumerGroupState.STABLE


@pytest.mark.usefixtures("_large")
def test_a_successor_makes_no_new_target_of_a_large_group_that_is_as_it_was(
    world: ConsumerWorld,
) -> None:
    first, second = world.consumer("a"), world.consumer("b")
    world.settle(first, second)
    epoch = world.consumer_group.epoch
    world.restart()
    before = len(world.log)
    world.settle(first, second)
    assert (world.consumer_group.epoch, len(world.log)) == (epoch, before)


@pytest.mark.usefixtures("_large")
def test_one_target_is_made_at_a_time(world: ConsumerWorld) -> None:
    world.is_working = False
    clients = [world.consumer(each) for each in "abcd"]
    for client in clients:
        client.beat()
    assert len(world.work) == 1
    world.work.clear()
    world.advance(TIMEOUT_MS)
    clients[0].beat()
    assert len(world.work) == 1, "the earlier work is lost"


@pytest.mark.usefixtures("_large")
def test_members_come_and_go_while_a_target_is_made(world: ConsumerWorld) -> None:
    """The target belongs to the epoch that it was made for. Later changes are in the next
    target."""
    first, second = world.consumer("a"), world.consumer("b")
    world.settle(first, second)
    world.is_working = False
    third = world.consumer("c")
    made_for = world.consumer_group.epoch
    second.leave()
    fourth = world.consumer("d")
    assert world.consumer_group.epoch == made_for + 2
    world.do_work()
    assert world.consumer_group.assignment_epoch == made_for
    assert world.consumer_group.epoch == made_for + 2, "the target is behind"
    world.is_working = True
    world.settle(first, third, fourth)
    assert all_of("t", first, third, fourth) == [0, 1, 2, 3]
    assert world.consumer_group.state is ConsumerGroupState.STABLE


@pytest.mark.usefixtures("_large")
def test_a_member_that_subscribes_to_something_else_meanwhile_gets_nothing_of_the_old_target(
    world: ConsumerWorld,
) -> None:
    first, second = world.consumer("a", names=["t"]), world.consumer("b", names=["t"])
    world.settle(first, second)
    world.grow("t", 8)
    world.is_working = False
    first.beat()
    second.hear(world.beat("b", second.epoch, owned=second.owned, names=["u"]))
    before = world.consumer_group.target("b")
    world.do_work()
    assert world.consumer_group.target("b") == before
    second.options = {"names": ["u"]}
    world.is_working = True
    world.settle(first, second)
    assert (all_of("t", first), second.has("t")) == (list(range(8)), [])
    assert second.has("u") == [0, 1]


@pytest.mark.usefixtures("_large")
def test_a_target_without_a_static_member_that_came_back_meanwhile_is_made_again(
    world: ConsumerWorld,
) -> None:
    """The return of a static member begins no epoch. Its new id is not in the target."""
    first, second = world.consumer("a", instance_id="i"), world.consumer("b")
    world.settle(first, second)
    world.is_working = False
    second.leave()
    first.beat()
    first.go_away()
    back = world.consumer("c", instance_id="i")
    world.do_work()
    world.is_working = True
    world.settle(back)
    assert back.has("t") == [0, 1, 2, 3]
    assert world.consumer_group.state is ConsumerGroupState.STABLE


@pytest.mark.usefixtures("_large")
def test_a_target_for_an_earlier_group_is_dropped(world: ConsumerWorld) -> None:
    world.is_working = False
    world.consumer("a").leave()
    (task,) = world.work
    assert isinstance(task, TargetTask)
    assert world.ask(DeleteGroup(GROUP), DeleteReply).error is ErrorCode.NONE
    world.consumer("z")
    before = len(world.log)
    world.submit(TargetMade(make_target(task)))
    assert len(world.log) == before


@pytest.mark.usefixtures("_large")
def test_a_target_is_whole_though_one_that_was_given_up_for_lost_came_before_it(
    world: ConsumerWorld,
) -> None:
    """The worker was busy, so the group requested a target twice. Both come, one after the
    other."""
    first, second = world.consumer("a"), world.consumer("b")
    world.settle(first, second)
    world.is_working = False
    third = world.consumer("c")
    for _ in range(TIMEOUT_MS // HEARTBEAT_MS - 1):
        world.advance(HEARTBEAT_MS)
        for client in (first, second, third):
            client.beat()
    third.leave()
    world.advance(HEARTBEAT_MS)
    first.beat()
    early, late = world.work
    assert isinstance(early, TargetTask)
    assert isinstance(late, TargetTask)
    assert early.members.keys() == {"a", "b", "c"}
    assert late.members.keys() == {"a", "b"}
    world.do_work()
    world.is_working = True
    world.settle(first, second)
    assert all_of("t", first, second) == [0, 1, 2, 3]
    assert world.consumer_group.state is ConsumerGroupState.STABLE


@pytest.mark.usefixtures("_large")
def test_a_new_topic_is_assigned_though_its_name_was_found_while_a_target_was_made(
    world: ConsumerWorld,
) -> None:
    """The target is of the topics that the expression matched before."""
    client = world.consumer("m", regex="t|fl.*")
    world.settle(client)
    world.advance(INTERVAL_MS)
    world.create(flights=2)
    world.is_working = False
    client.beat()
    assert [type(each) for each in world.work] == [PatternLookup, TargetTask]
    world.do_work()
    world.is_working = True
    world.settle(client)
    assert client.has("flights") == [0, 1]


@pytest.mark.parametrize("is_cooperative", [False, True])
@pytest.mark.usefixtures("_large")
def test_a_classic_member_gets_its_present_assignment_while_a_target_is_late(
    world: ConsumerWorld, is_cooperative: bool
) -> None:
    """An error would make its client join and sync again at once, and again, without a pause."""
    old = ClassicClient(world, is_cooperative)
    classic_group(world, old)
    world.is_working = False
    new = world.consumer("new")
    assert world.consumer_group.state is ConsumerGroupState.ASSIGNING
    old.enter()
    assert (old.error, old.has()) == (ErrorCode.NONE, ALL)
    world.advance(HEARTBEAT_MS)
    new.beat()
    assert new.has() == []
    world.do_work()
    world.is_working = True
    settle(world, old, new)


@pytest.mark.usefixtures("_large")
def test_a_classic_member_joins_again_if_the_target_comes_before_its_sync(
    world: ConsumerWorld,
) -> None:
    old = ClassicClient(world)
    classic_group(world, old)
    world.is_working = False
    new = world.consumer("new")
    old.join()
    world.do_work()
    old.sync()
    assert old.error is ErrorCode.REBALANCE_IN_PROGRESS
    world.is_working = True
    settle(world, old, new)
