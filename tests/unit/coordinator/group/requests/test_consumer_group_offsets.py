"""Offsets of consumer groups, and the groups' lists, deletion, expiry and conversion."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.consumer_world import SESSION_MS, ConsumerWorld, FakeConsumer
from tests.unit.coordinator.group.group_world import GROUP
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    ListGroups,
    ListGroupsReply,
    OffsetsReply,
    PartitionErrors,
)
from tidelog.coordinator.group.records.consumer_records import (
    ConsumerGroupRemoved,
    TargetEpochRemoved,
)
from tidelog.coordinator.group.records.log_records import GroupRemoved, OffsetRemoved
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.protocol.error_codes import ErrorCode

DAY_MS = 24 * 3600 * 1000
SWEEP_MS = GroupSettings().offsets_check_interval_ms


def fetch_error(world: ConsumerWorld, member_id: str | None, epoch: int) -> ErrorCode:
    fetch = FetchOffsets(GROUP, {"t": [0]}, member_id=member_id, member_epoch=epoch)
    return world.ask(fetch, OffsetsReply).error


def stay(world: ConsumerWorld, client: FakeConsumer, days: int) -> None:
    """Days pass, in which the member sends heartbeats now and then."""
    for _ in range(days * DAY_MS // SESSION_MS + 1):
        client.beat()
        assert client.error is ErrorCode.NONE
        world.advance(SESSION_MS - 1)


# Commits.


def test_members_commit_in_their_epoch(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    assert world.commit(5, "m", client.epoch) is ErrorCode.NONE
    assert world.commit(6, "m", client.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit(6, "m", client.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit(6, "n", client.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit(6) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.committed() == 5


def test_members_commit_with_a_version_that_knows_epochs(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    assert world.commit(5, "m", client.epoch, version=8) is ErrorCode.UNSUPPORTED_VERSION


def test_a_client_without_membership_commits_to_an_empty_consumer_group(
    world: ConsumerWorld,
) -> None:
    world.consumer("m").leave()
    assert world.commit(5) is ErrorCode.NONE
    assert world.describe_consumers().state == "Empty"


def test_a_commit_does_not_stand_for_a_heartbeat(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    world.advance(SESSION_MS - 1)
    assert world.commit(5, "m", client.epoch) is ErrorCode.NONE
    world.advance(1)
    assert world.commit(6, "m", client.epoch) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_are_fenced_in_transactions(world: ConsumerWorld) -> None:
    """The error code is one that clients of this request know."""
    client = world.consumer("m")
    epoch = client.epoch
    assert world.commit_in_transaction(5, "m", epoch + 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.commit_in_transaction(5, "n", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_in_transaction(5, "n") is ErrorCode.UNKNOWN_MEMBER_ID
    assert not world.stable_offset()
    assert world.commit_in_transaction(5, "m", epoch) is ErrorCode.NONE
    assert world.stable_offset() is ErrorCode.UNSTABLE_OFFSET_COMMIT
    world.end_transaction(commit=True)
    assert world.stable_offset() == 5
    assert world.commit_in_transaction(6) is ErrorCode.NONE


# Fetches.


def test_members_fetch_in_their_epoch_and_other_clients_without_an_epoch(
    world: ConsumerWorld,
) -> None:
    client = world.consumer("m")
    assert fetch_error(world, "m", client.epoch) is ErrorCode.NONE
    assert fetch_error(world, None, -1) is ErrorCode.NONE
    assert fetch_error(world, "m", client.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(world, "n", client.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_error(world, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_of_the_classic_protocol_do_not_check_the_fetching_member(
    world: ConsumerWorld,
) -> None:
    world.stable()
    assert fetch_error(world, "anybody", 7) is ErrorCode.NONE


# Deletion and expiry.


def test_offsets_of_subscribed_topics_are_not_deleted(world: ConsumerWorld) -> None:
    world.create(flights=1)
    client = world.consumer("m", names=["t"], regex="fl.*")
    for topic in ("t", "u", "flights"):
        world.commit(5, "m", client.epoch, topic=topic)
    delete = DeleteOffsets(GROUP, [(topic, 0) for topic in ("t", "u", "flights")])
    reply = world.ask(delete, PartitionErrors)
    assert [error for *_, error in reply.partitions] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    ]
    assert (world.committed("t"), world.committed("u"), world.committed("flights")) == (5, None, 5)


def test_offsets_of_unsubscribed_topics_expire(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    world.commit(5, "m", client.epoch, topic="t")
    world.commit(5, "m", client.epoch, topic="u")
    stay(world, client, 8)
    assert (world.committed("t"), world.committed("u")) == (5, None)


def test_an_empty_group_goes_when_its_offsets_have_expired(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    world.commit(5, "m", client.epoch)
    client.leave()
    world.advance(7 * DAY_MS - SWEEP_MS)
    assert world.committed() == 5
    world.advance(2 * SWEEP_MS)
    assert world.log[-3:] == [
        OffsetRemoved(GROUP, "t", 0),
        TargetEpochRemoved(GROUP),
        ConsumerGroupRemoved(GROUP),
    ]
    assert not world.machine.consumer_groups
    world.restart()
    assert not world.machine.consumer_groups
    assert not world.machine.groups


def test_a_group_without_members_is_deleted(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    world.commit(5, "m", client.epoch)
    assert world.ask(DeleteGroup(GROUP), DeleteReply).error is ErrorCode.NON_EMPTY_GROUP
    client.leave()
    assert world.ask(DeleteGroup(GROUP), DeleteReply).error is ErrorCode.NONE
    assert world.ask(DeleteGroup(GROUP), DeleteReply).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.committed() is None
    # The next member begins a new group.
    assert world.enter("m").member_epoch == 1


# Lists and descriptions.


def test_groups_are_listed_by_type_and_state(world: ConsumerWorld) -> None:
    world.consumer("m")
    world.commit(5, group_id="simple")

    def listed(*types: str, states: tuple[str, ...] = ()) -> list[str]:
        asked = ListGroups(frozenset(states), frozenset(types))
        return [each.group_id for each in world.ask(asked, ListGroupsReply).groups]

    assert sorted(listed()) == ["g", "simple"]
    assert listed("Consumer") == ["g"]
    assert listed("classic") == ["simple"]
    assert listed("share") == []
    assert listed(states=("stable",)) == ["g"]
    assert listed("consumer", states=("Empty",)) == []
    (found,) = world.ask(ListGroups(frozenset(), frozenset({"consumer"})), ListGroupsReply).groups
    assert found == ("g", "consumer", "Stable", "consumer")


def test_a_group_is_described_by_the_protocol_that_it_has(world: ConsumerWorld) -> None:
    world.consumer("m")
    assert world.describe().error is ErrorCode.GROUP_ID_NOT_FOUND
    found = world.describe_consumers()
    assert (found.state, found.epoch, found.assignment_epoch) == ("Stable", 1, 1)
    assert (found.assignor, found.members[0].subscription.topic_names) == ("uniform", ("t",))
    assert found.members[0].target == found.members[0].current.assigned == world.place(t=range(4))
    world.commit(5, group_id="simple")
    assert world.describe_consumers("simple").error is ErrorCode.GROUP_ID_NOT_FOUND


# Between the protocols.


def test_a_group_without_members_goes_over_to_the_consumer_protocol(world: ConsumerWorld) -> None:
    (member,) = world.stable()
    world.commit(5, member, 1)
    world.leave(member)
    client = world.consumer("m")
    assert (client.error, client.epoch) == (ErrorCode.NONE, 1)
    assert GroupRemoved(GROUP) in world.log
    assert not world.machine.groups
    assert world.committed() == 5
    world.restart()
    client.beat()
    assert client.error is ErrorCode.NONE
    assert (list(world.machine.groups), world.committed()) == ([], 5)


def test_a_group_that_only_holds_offsets_goes_over(world: ConsumerWorld) -> None:
    world.commit(5)
    assert world.consumer("m").error is ErrorCode.NONE
    assert world.committed() == 5


@pytest.mark.parametrize("begin", ["preparing", "completing", "stable"])
def test_a_group_with_members_stays_with_the_classic_protocol(
    world: ConsumerWorld, begin: str
) -> None:
    getattr(world, begin)()
    before = len(world.log)
    reply = world.enter("m")
    assert reply.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert reply.message == "Group g is not a consumer group."
    assert world.beat("m", 1).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(world.log) == before


def test_a_consumer_group_without_members_goes_over_to_the_classic_protocol(
    world: ConsumerWorld,
) -> None:
    client = world.consumer("m")
    world.commit(5, "m", client.epoch)
    client.leave()
    (member,) = world.stable()
    assert not world.machine.consumer_groups
    assert world.commit(6, member, world.group.generation) is ErrorCode.NONE
    world.restart()
    assert not world.machine.consumer_groups
    assert world.describe().state == "Stable"
    assert world.committed() == 6


def test_members_without_a_consumer_subscription_stay_out_of_consumer_groups(
    world: ConsumerWorld,
) -> None:
    client = world.consumer("m")
    before = len(world.log)
    assert world.join_refused() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join_refused("m") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.heartbeat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.synced(world.sync("m", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(world.log) == before
    client.beat()
    assert client.error is ErrorCode.NONE


def test_an_administrator_may_remove_a_member(world: ConsumerWorld) -> None:
    client = world.consumer("m")
    ((_, error), (_, unknown)) = world.leave("m", "nobody").members
    assert (error, unknown) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    client.beat()
    assert client.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_refused_join_does_not_change_the_protocol(world: ConsumerWorld) -> None:
    world.consumer("m").leave()
    assert world.join_refused(protocols=()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join_refused("unknown") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.describe_consumers().state == "Empty"
    assert not world.machine.groups
