"""Transactions whose coordinator, group coordinator and leaders are on different brokers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run, until
from tests.unit.broker.ownership.test_several_brokers import epoch_of, take_over
from tests.unit.broker.peers.several import (
    OK,
    RoutedClient,
    Wire,
    create,
    divided,
    new_world,
    refreshed,
)
from tests.unit.broker.sink_world import Sink
from tests.unit.broker.transactional_client import (
    FIRST,
    GROUP,
    SECOND,
    TransactionalClient,
    ask,
    committed_offset,
    loaded,
    read,
)
from tidelog.broker.handlers.groups.group_offsets import offset_commit
from tidelog.client.transactions.sink import SinkCommitted
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.schemas.transactions import WriteTxnMarkersResponse

both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


async def until_stable(one: OneBroker, partition: int, offset: int) -> None:
    """Wait until the last stable offset is there."""
    clock = one.broker.environment.clock
    while (await one.offsets(-1, partition, committed=True)).offset < offset:
        await clock.sleep(0.001)


@both_versions
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_holds_over_three_brokers(version: int, commit: bool) -> None:
    """Broker 1 coordinates transactions, and broker 2 groups. Both lead partitions."""

    async def story() -> None:
        async with divided(new_world(), 0, 1, 2, coordinator=1, groups=2, brokers=3) as brokers:
            producer = RoutedClient(brokers[1], brokers, brokers[2], version)
            assert await producer.init() is OK
            for number in range(3):
                assert await producer.send(b"%d" % number, number) is OK
            assert await producer.commit_offset(7) is OK
            for number, leader in enumerate(brokers):
                assert (await leader.produce(batch(b"plain"), number)).error_code == OK
                assert await read(leader, number) == []
            assert await committed_offset(brokers[2], stable=False) == -1
            assert await producer.end(commit=commit) is OK
            for number, leader in enumerate(brokers):
                await until_stable(leader, number, 3)
                expected = [b"%d" % number, b"plain"] if commit else [b"plain"]
                assert await read(leader, number) == expected
            while (found := await committed_offset(brokers[2])) < -1:
                await brokers[2].broker.environment.clock.sleep(0.001)
            assert found == (7 if commit else -1)

    run(story)


@both_versions
def test_transactions_follow_each_other(version: int) -> None:
    """The next transaction begins when the markers of the one before are durable everywhere."""

    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            producer = RoutedClient(brokers[1], brokers, brokers[1], version)
            assert await producer.init() is OK
            for number in range(5):
                while await producer.send(b"%d" % number) is not OK:
                    await brokers[0].broker.environment.clock.sleep(0.001)
                assert await producer.end(commit=number != 2) is OK
            await until_stable(brokers[0], 0, 10)
            assert await read(brokers[0]) == [b"0", b"1", b"3", b"4"]

    run(story)


def leader_end(one: OneBroker) -> int:
    return one.broker.writes.partitions.named(TOPIC, 0).log.next_offset


def hosts(one: OneBroker, topic_id: TopicId, partition: int) -> bool:
    return one.broker.writes.partitions.get(TopicPartition(topic_id, partition)) is not None


def markers_in(one: OneBroker, partition: int = 0) -> int:
    """The log's end after one record of a transaction and its marker."""
    return one.broker.writes.partitions.named(TOPIC, partition).log.next_offset - 1


@both_versions
@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_lost_requests_and_answers_are_repeated_and_change_nothing(version: int, lost: str) -> None:
    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            leader, coordinator = brokers
            wires = [Wire(each) for each in brokers]
            for wire in wires:
                (wire.cut if lost == "requests" else wire.deaf).update(["enlistments", "markers"])
            producer = RoutedClient(coordinator, [leader], coordinator, version)
            assert await producer.init() is OK
            assert await producer.send(b"x") is ErrorCode.NOT_ENOUGH_REPLICAS
            for wire in wires:
                wire.cut.discard("enlistments")
                wire.deaf.discard("enlistments")
            assert await producer.send(b"x", adds=False) is OK
            assert await producer.commit() is OK
            clock = coordinator.broker.environment.clock
            if lost == "answers":
                while wires[1].carried["markers"] < 3:
                    await clock.sleep(0.001)
                assert markers_in(leader) == 1
            for wire in wires:
                wire.cut.clear()
                wire.deaf.clear()
            while await producer.send(b"y") is not OK:
                await clock.sleep(0.001)
            assert await producer.abort() is OK
            await until_stable(leader, 0, 4)
            assert await read(leader) == [b"x"]
            assert markers_in(leader) == 3

    run(story)


@both_versions
@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_a_coordinator_that_dies_before_the_completion_has_a_successor_that_sends_all_markers(
    version: int, lost: str
) -> None:
    """The client has the decision's answer. The successor is on the leader's broker or on a third
    one."""

    async def story(successor: int) -> None:
        world = new_world()
        async with AsyncExitStack() as stack:
            leader = await stack.enter_async_context(world.broker(0))
            third = await stack.enter_async_context(world.broker(1))
            brokers = [leader, third]
            async with world.broker(2, politely=False) as dead:
                await create(dead, TRANSACTION_TOPIC, dead, internal=True)
                await create(dead, GROUP_TOPIC, leader, internal=True)
                await create(dead, TOPIC, leader)
                await refreshed(*brokers)
                wire = Wire(dead)
                (wire.cut if lost == "requests" else wire.deaf).add("markers")
                producer = RoutedClient(dead, [leader], leader, version)
                assert await producer.init() is OK
                assert await producer.send(b"x") is OK
                assert await producer.commit_offset(5) is OK
                assert await producer.commit() is OK
                if lost == "answers":
                    await until_stable(leader, 0, 2)
                else:
                    assert await read(leader) == []
            await take_over(third, dead, {0: epoch_of(brokers[successor])})
            await refreshed(*brokers)
            coordinators = brokers[successor].broker.coordination.coordinators
            await until(lambda: coordinators.transactions.all())
            await loaded(brokers[successor])
            await until_stable(leader, 0, 2)
            assert await read(leader) == [b"x"]
            producer.broker = producer.coordinator = brokers[successor]
            assert await producer.init(goes_on=True) is OK
            assert await committed_offset(leader) == 5
            assert await producer.send(b"y") is OK
            assert await producer.commit() is OK
            await until_stable(leader, 0, 4)
            assert await read(leader) == [b"x", b"y"]
            assert markers_in(leader) == 3

    run(lambda: story(0))
    run(lambda: story(1))


@both_versions
def test_requests_that_arrive_again_in_the_next_transaction_change_nothing(version: int) -> None:
    """Under the first version the epoch stays the same. The ordinal tells the transactions
    apart."""

    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            leader, coordinator = brokers
            wire, leaders_wire = Wire(coordinator), Wire(leader)
            producer = RoutedClient(coordinator, [leader], leader, version)
            assert await producer.init() is OK
            assert await producer.send(b"one") is OK
            assert await producer.commit() is OK
            await until_stable(leader, 0, 2)
            while await producer.send(b"two") is not OK:
                await leader.broker.environment.clock.sleep(0.001)
            (again,) = await wire.repeat("markers")
            assert again.markers[0].topics[0].partitions[0].error_code == OK
            await leaders_wire.repeat("enlistments")
            assert leader_end(leader) == 3
            assert (await leader.offsets(-1, committed=True)).offset == 2
            assert await producer.abort() is OK
            await until_stable(leader, 0, 4)
            assert await read(leader) == [b"one"]

    run(story)


@both_versions
def test_a_leader_that_dies_has_a_successor_that_gets_the_marker(version: int) -> None:
    """Here the successor is the coordinator's own broker: the retry finds it."""

    async def story() -> None:
        world = new_world()
        async with world.broker(0) as coordinator:
            async with world.broker(1, politely=False) as dead:
                await create(dead, TRANSACTION_TOPIC, coordinator, internal=True)
                topic_id = await create(dead, TOPIC, dead, dead)
                await refreshed(coordinator)
                producer = RoutedClient(coordinator, [dead, dead], coordinator, version)
                assert await producer.init() is OK
                assert await producer.send(b"x") is OK
                assert await producer.send(b"y", 1) is OK
                Wire(coordinator).cut.add("markers")
                assert await producer.commit() is OK
            mine = epoch_of(coordinator)
            await take_over(coordinator, dead, {0: mine, 1: mine})
            for number in range(2):
                await until(lambda n=number: hosts(coordinator, topic_id, n))  # type: ignore[misc]
                await until_stable(coordinator, number, 2)
            assert await read(coordinator) == [b"x"]
            assert await read(coordinator, 1) == [b"y"]

    run(story)


@both_versions
def test_a_deleted_topic_keeps_no_transaction_from_its_end(version: int) -> None:
    """The coordinator does not know of the deletion, and the leader's answer is not enough."""

    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            leader, coordinator = brokers
            wire = Wire(leader)
            wire.cut.add("hints")
            producer = RoutedClient(coordinator, [leader], coordinator, version)
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            topic = leader.broker.membership.state().topic_named(TOPIC)
            assert topic is not None
            await leader.delete_topic(topic.topic_id)
            assert await producer.commit() is OK
            while await producer.init() is not OK:
                await leader.broker.environment.clock.sleep(0.001)
            assert coordinator.broker.membership.state().topic_named(TOPIC) is None

    run(story)


@both_versions
@pytest.mark.parametrize("is_late", [True, False])
def test_a_topic_that_was_created_again_gets_no_end_of_another_transaction(
    version: int, is_late: bool
) -> None:
    """This happens between the decision and its marker. Another producer's transaction is open in
    the new topic.

    A late marker names the old topic. A lost marker is sent again by the newest view.
    """

    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            leader, coordinator = brokers
            wire = Wire(coordinator)
            arrival = asyncio.Event()
            if is_late:
                wire.held["markers"] = arrival
            else:
                wire.cut.add("markers")
            Wire(leader).cut.add("hints")
            producer = RoutedClient(coordinator, [leader], coordinator, version)
            assert await producer.init() is OK
            assert await producer.send(b"old") is OK
            assert await producer.commit() is OK
            topic = leader.broker.membership.state().topic_named(TOPIC)
            assert topic is not None
            await leader.delete_topic(topic.topic_id)
            await create(leader, TOPIC, leader)
            other = RoutedClient(coordinator, [leader], coordinator, version, "other")
            assert await other.init() is OK
            assert await other.send(b"new") is OK
            wire.cut.clear()
            arrival.set()
            while await producer.init() is not OK:
                await leader.broker.environment.clock.sleep(0.001)
            codes = [
                partition.error_code
                for answer in wire.answers
                if isinstance(answer, WriteTxnMarkersResponse)
                for marker in answer.markers
                for topic in marker.topics
                for partition in topic.partitions
            ]
            assert codes == ([ErrorCode.INCONSISTENT_TOPIC_ID] if is_late else []) + [OK]
            assert (await leader.offsets(-1, committed=True)).offset == 0
            assert await other.abort() is OK
            await until_stable(leader, 0, leader_end(leader))
            assert await read(leader) == []
            assert await read(leader, committed=False) == [b"new"]
            # The next transaction of the first producer begins in the new topic as in any other.
            assert await producer.send(b"next") is OK
            assert await producer.commit() is OK
            await until_stable(leader, 0, leader_end(leader))
            assert await read(leader) == [b"next"]

    run(story)


def test_a_sink_commits_over_brokers() -> None:
    """Adopt asks the coordinator of another broker, and so does TxnOffsetCommit."""
    here = new_world()

    async def story() -> None:
        async with divided(here, 0, 1, 2, coordinator=1, groups=0, brokers=3) as brokers:
            topic = brokers[0].broker.membership.state().topic_named(TOPIC)
            assert topic is not None
            sink = Sink(here)
            for batch_id in range(2):
                staged = await sink.stage(topic.topic_id, batch_id, {0: [b"a"], 1: [b"b"], 2: []})
                places = {0: [staged], 1: [staged]}
                assert await sink.commit(brokers[2], batch_id, places) is SinkCommitted.NOW
                assert await sink.commit(brokers[2], batch_id, places) is SinkCommitted.BEFORE
            for number, value in enumerate([b"a", b"b"]):
                await until_stable(brokers[number], number, 4)
                assert await read(brokers[number], number) == [value, value]

    run(story)


@both_versions
@pytest.mark.parametrize("coordinator", [0, 2])
def test_a_marker_in_a_deleted_topic_does_not_count_for_the_new_topic_of_its_name(
    version: int, coordinator: int
) -> None:
    """Broker 0 leads the old topic and does not know that it was deleted, nor does the coordinator.
    The transaction has its data in the new topic, at broker 1."""

    async def story() -> None:
        async with divided(new_world(), 0, coordinator=coordinator, brokers=3) as brokers:
            leader = brokers[1]
            Wire(leader).cut.add("hints")
            old = leader.broker.membership.state().topic_named(TOPIC)
            assert old is not None
            producer = RoutedClient(brokers[coordinator], [leader], leader, version)
            assert await producer.init() is OK
            await leader.delete_topic(old.topic_id)
            await create(leader, TOPIC, leader)
            assert await producer.send(b"x") is OK
            assert await producer.commit() is OK
            async with asyncio.timeout(10):
                await until_stable(leader, 0, 2)
            assert await read(leader) == [b"x"]

    run(story)


def test_a_coordinator_learns_of_a_new_topic_when_a_leader_asks() -> None:
    """Hints get lost."""

    async def story(version: int) -> None:
        async with divided(new_world()) as brokers:
            leader, coordinator = brokers
            Wire(leader).cut.add("hints")
            await create(leader, TOPIC, leader)
            assert coordinator.broker.membership.state().topic_named(TOPIC) is None
            producer = RoutedClient(coordinator, [leader], coordinator, version)
            assert await producer.init() is OK
            assert await producer.send(b"x") is OK
            assert await producer.commit() is OK
            await until_stable(leader, 0, 2)
            assert await read(leader) == [b"x"]

    for version in (FIRST, SECOND):
        run(lambda version=version: story(version))  # type: ignore[misc]


def test_other_brokers_learn_of_an_entry_at_once() -> None:
    async def story() -> None:
        async with divided(new_world(), brokers=3) as brokers:
            await create(brokers[0], TOPIC, brokers[0])
            for each in brokers[1:]:
                state = each.broker.membership.state
                while state().topic_named(TOPIC) is None:
                    await each.broker.environment.clock.sleep(0.001)

    run(story)


@both_versions
def test_requests_of_transactions_for_another_broker_are_refused(version: int) -> None:
    """Clients take these answers for a reason to search for the coordinator again."""

    async def story() -> None:
        async with divided(new_world(), 0) as brokers:
            producer = TransactionalClient(brokers[1], version=version)
            assert await producer.init() is OK
            producer.broker = brokers[0]
            elsewhere = ErrorCode.NOT_COORDINATOR
            assert await TransactionalClient(brokers[0], "t", version).init() is elsewhere
            assert await producer.add(0) is elsewhere
            assert await producer.add_group() is elsewhere
            assert await producer.commit_offset(1, adds=False) is elsewhere
            assert await producer.commit() is elsewhere

    run(story)


@pytest.mark.parametrize("is_transactional", [True, False])
def test_offsets_of_a_topic_that_the_coordinator_does_not_know_yet_are_stored(
    is_transactional: bool,
) -> None:
    """Another broker has created the topic, and its hint is lost."""

    async def story() -> None:
        async with divided(new_world()) as brokers:
            leader, coordinator = brokers
            Wire(leader).cut.add("hints")
            await create(leader, TOPIC, leader)
            producer = RoutedClient(coordinator, [leader], coordinator)
            if is_transactional:
                assert await producer.init() is OK
                assert await producer.commit_offset(4) is OK
                assert await producer.commit() is OK
            else:
                partition = OffsetCommitRequestPartition(committed_offset=4)
                topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
                request = OffsetCommitRequest(group_id=GROUP, topics=[topic])
                answer = await ask(coordinator, offset_commit, request, 8)
                assert answer.topics[0].partitions[0].error_code == OK
            assert await committed_offset(coordinator) == 4

    run(story)


@both_versions
def test_offsets_wait_for_a_transaction_coordinator_that_gives_no_answer(version: int) -> None:
    """A client must not mistake the topic's absence for the group coordinator's."""

    async def story() -> None:
        async with divided(new_world(), 0, groups=0) as brokers:
            groups, coordinator = brokers
            producer = RoutedClient(coordinator, [groups], groups, version)
            assert await producer.init() is OK
            wire = Wire(groups)
            wire.cut.add("enlistments")
            if version == FIRST:
                assert await producer.add_group() is OK
            told = await producer.commit_offset(4, adds=False)
            assert told is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            wire.cut.clear()
            assert await producer.commit_offset(4, adds=False) is OK
            assert await producer.commit() is OK
            while await committed_offset(groups) != 4:
                await groups.broker.environment.clock.sleep(0.001)

    run(story)


@both_versions
def test_offsets_of_a_topic_that_is_deleted_during_their_admission_are_refused(
    version: int,
) -> None:
    """A topic that is created under the name later does not begin at them."""

    async def story() -> None:
        async with divided(new_world(), 0, groups=0) as brokers:
            groups, coordinator = brokers
            producer = RoutedClient(coordinator, [groups], groups, version)
            assert await producer.init() is OK
            if version == FIRST:
                assert await producer.add_group() is OK
            wire = Wire(groups)
            wire.held["enlistments"] = asyncio.Event()
            committing = asyncio.create_task(producer.commit_offset(4, adds=False))
            await asyncio.sleep(0)
            found = groups.broker.membership.metadata.state.topic_named(TOPIC)
            assert found is not None
            await groups.delete_topic(found.topic_id)
            wire.held["enlistments"].set()
            told = await committing
            assert await producer.commit() is OK
            await create(groups, TOPIC, groups)
            await refreshed(*brokers)
            while (offset := await committed_offset(groups)) < -1:
                await groups.broker.environment.clock.sleep(0.001)
            assert (told, offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)

    run(story)
