"""Groups change their protocol while they have members, one member after the other (KIP-848). This
happens when clients are restarted with `group.protocol=consumer`, or back."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.classic_client import ALL, OK, ClassicClient, classic_group
from tests.unit.coordinator.group.consumer_world import ConsumerWorld, FakeConsumer
from tests.unit.coordinator.group.group_world import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS
from tidelog.coordinator.group.commands import Leaver, ListGroups, ListGroupsReply
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.protocol.error_codes import ErrorCode


def settle(world: ConsumerWorld, *clients: ClassicClient | FakeConsumer) -> None:
    """Send heartbeats until each member has a fair share and no assignment changes."""
    for _ in range(20):
        before = len(world.log)
        for client in clients:
            client.beat()
        if len(world.log) == before:
            break
    else:
        raise AssertionError("the group does not come to rest")
    owned = [number for client in clients for number in client.has()]
    assert sorted(owned) == ALL, "each partition has one owner"


def group_type(world: ConsumerWorld) -> str:
    (only,) = world.ask(ListGroups(frozenset()), ListGroupsReply).groups
    return only.group_type


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_a_rolling_restart_brings_a_group_over_and_back(
    world: ConsumerWorld, is_cooperative: bool
) -> None:
    one, two = (ClassicClient(world, is_cooperative) for _ in range(2))
    classic_group(world, one, two)
    assert world.commit(7, one.member_id, one.generation) is OK

    new = world.consumer("new")
    assert group_type(world) == "consumer"
    settle(world, one, two, new)
    assert world.committed() == 7
    assert [len(each.has()) for each in (one, two)] != [2, 2]

    world.leave(two.member_id)
    other = world.consumer("other")
    settle(world, one, new, other)
    world.leave(one.member_id)
    world.advance(0)
    settle(world, new, other)
    assert world.describe_consumers().state == "Stable"

    back = ClassicClient(world, is_cooperative)
    back.enter()
    settle(world, new, other, back)
    new.leave()
    world.advance(0)
    assert group_type(world) == "consumer"
    settle(world, other, back)
    other.leave()
    world.advance(0)
    assert group_type(world) == "classic"
    # The member's epoch is no generation here, so the member joins again.
    assert world.heartbeat(back.member_id, back.generation) is ErrorCode.ILLEGAL_GENERATION
    before = back.generation
    classic_group(world, back)
    assert back.generation > before
    assert world.committed() == 7


def test_a_moved_partition_is_revoked_first(world: ConsumerWorld) -> None:
    old = ClassicClient(world, is_cooperative=True)
    classic_group(world, old)
    new = world.consumer("new")
    assert (old.has(), new.has()) == (ALL, [])
    old.beat()
    new.beat()
    assert (len(old.has()), len(new.has())) == (2, 2)
    assert not set(old.has()) & set(new.has())


@pytest.mark.parametrize("dies_when", ["upgraded", "downgraded"])
def test_a_successor_continues_with_the_groups_latest_state(
    world: ConsumerWorld, dies_when: str
) -> None:
    old = ClassicClient(world, is_cooperative=True)
    classic_group(world, old)
    new = world.consumer("new")
    if dies_when == "upgraded":
        world.restart()
        settle(world, old, new)
        assert group_type(world) == "consumer"
        return
    settle(world, old, new)
    new.leave()
    world.advance(0)
    world.restart()
    assert group_type(world) == "classic"
    # No record tells that a rebalance had begun, but no member has this generation.
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.ILLEGAL_GENERATION
    classic_group(world, old)


def test_a_leader_that_dies_before_it_looked_leaves_that_to_its_successor(
    world: ConsumerWorld,
) -> None:
    old = ClassicClient(world)
    classic_group(world, old)
    world.consumer("new").leave()
    world.restart()
    world.advance(0)
    assert group_type(world) == "classic"


def test_a_silent_member_is_removed_by_its_own_session_timeout(
    world: ConsumerWorld,
) -> None:
    old = ClassicClient(world)
    classic_group(world, old)
    new = world.consumer("new")
    world.advance(SESSION_MS)
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, new)
    assert new.has() == ALL


def test_a_member_that_only_sends_heartbeats_is_removed_in_the_end(world: ConsumerWorld) -> None:
    old = ClassicClient(world)
    classic_group(world, old)
    new = world.consumer("new")
    for _ in range(REBALANCE_MS // 5_000):
        error = world.heartbeat(old.member_id, old.generation)
        assert error is ErrorCode.REBALANCE_IN_PROGRESS
        world.advance(5_000)
        new.beat()
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, new)


def test_a_member_that_joins_and_does_not_sync_is_removed(world: ConsumerWorld) -> None:
    new = world.consumer("new")
    old = ClassicClient(world)
    old.join()
    for _ in range(REBALANCE_MS // 5_000):
        world.heartbeat(old.member_id, old.generation)
        world.advance(5_000)
        new.beat()
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_joins_again_and_again_and_does_not_revoke_is_removed(
    world: ConsumerWorld,
) -> None:
    old = ClassicClient(world, is_cooperative=True)
    classic_group(world, old)
    new = world.consumer("new")
    for _ in range(REBALANCE_MS // 5_000):
        old.join()
        assert old.error is OK
        world.sync(old.member_id, old.generation)
        world.advance(5_000)
        new.beat()
    assert world.heartbeat(old.member_id, old.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    settle(world, new)


def test_joins_that_wait_for_a_generation_are_sent_to_join_again(world: ConsumerWorld) -> None:
    old = ClassicClient(world)
    waiting = old.ask_to_join()
    new = world.consumer("new")
    reply = world.joined(waiting)
    assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS
    old.member_id = reply.member_id
    old.enter()
    settle(world, old, new)


def test_a_new_member_of_the_classic_protocol_is_told_its_id_first(world: ConsumerWorld) -> None:
    world.consumer("new")
    protocols = ClassicClient(world).protocols
    first = world.joined(world.join(protocols=protocols, version=9))
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    again = world.joined(world.join(first.member_id, protocols=protocols, version=9))
    assert (again.error, again.member_id, again.leader) == (OK, first.member_id, "")
    assert again.protocol_type == "consumer"
    assert again.protocol == "range"


def test_a_static_member_keeps_its_place_whichever_protocol_it_speaks(world: ConsumerWorld) -> None:
    old = ClassicClient(world, instance_id="i")
    classic_group(world, old)
    other = world.consumer("other")
    settle(world, old, other)
    share = old.has()

    new = world.consumer("new", instance_id="i")
    assert new.error is OK
    assert new.has() == share
    error = world.heartbeat(old.member_id, old.generation, "i")
    assert error is ErrorCode.FENCED_INSTANCE_ID

    back = ClassicClient(world, instance_id="i")
    back.enter()
    assert back.has() == share
    new.beat()
    assert new.error is ErrorCode.FENCED_INSTANCE_ID
    ((_, error),) = world.leave(Leaver("", "i")).members
    assert error is OK


def test_offsets_are_fenced_by_the_words_of_the_members_protocol(world: ConsumerWorld) -> None:
    old = ClassicClient(world)
    classic_group(world, old)
    new = world.consumer("new")
    settle(world, old, new)
    assert world.commit(5, old.member_id, old.generation, version=7) is OK
    stale = world.commit(6, old.member_id, old.generation - 1, version=7)
    assert stale is ErrorCode.ILLEGAL_GENERATION
    assert world.commit(6, new.member_id, new.epoch - 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert world.commit(6, new.member_id, new.epoch, version=7) is ErrorCode.UNSUPPORTED_VERSION


def test_requests_of_the_classic_protocol_that_do_not_fit_are_refused(world: ConsumerWorld) -> None:
    new = world.consumer("new")
    old = ClassicClient(world)
    old.enter()
    settle(world, old, new)
    other = (SupportedProtocol("other", old.protocols[0].metadata),)
    refused = world.join_refused(protocols=other)
    assert refused is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = world.join_refused(protocols=old.protocols, protocol_type="connect")
    assert refused is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.heartbeat("new", new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(old.member_id, old.generation + 1) is ErrorCode.ILLEGAL_GENERATION
    late = world.sync(old.member_id, old.generation - 1)
    assert world.synced(late).error is ErrorCode.ILLEGAL_GENERATION
    strange = world.sync(old.member_id, old.generation, protocol="other")
    assert world.synced(strange).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("metadata", [b"", b"\x00\x00", b"not a subscription"])
def test_a_group_whose_members_are_no_consumers_stays_as_it_is(
    world: ConsumerWorld, metadata: bytes
) -> None:
    opaque = (SupportedProtocol("range", metadata),)
    token = world.join(protocols=opaque)
    world.advance(DELAY_MS)
    assert world.joined(token).error is OK
    assert world.enter("new").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert group_type(world) == "classic"


def test_only_the_directions_that_the_policy_allows() -> None:
    world = ConsumerWorld(GroupSettings(upgrades=False))
    classic_group(world, ClassicClient(world))
    assert world.enter("new").error is ErrorCode.GROUP_ID_NOT_FOUND

    world = ConsumerWorld(GroupSettings(downgrades=False))
    old = ClassicClient(world)
    classic_group(world, old)
    new = world.consumer("new")
    settle(world, old, new)
    new.leave()
    world.advance(0)
    settle(world, old)
    assert group_type(world) == "consumer"


def test_a_group_too_large_for_a_consumer_group_stays_as_it_is() -> None:
    world = ConsumerWorld(GroupSettings(consumer_members_max=1))
    classic_group(world, ClassicClient(world))
    assert world.enter("new").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.describe_consumers(GROUP).error is ErrorCode.GROUP_ID_NOT_FOUND
