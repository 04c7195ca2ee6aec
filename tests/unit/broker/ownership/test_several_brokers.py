"""Several brokers on one bucket: each serves its partitions, and takes over those of dead
brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run, until
from tests.unit.broker.rolled import flush, offsets
from tidelog.broker.handlers.cluster.replicas import alter_partition_reassignments
from tidelog.broker.ownership import partition_recovery
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.roll.recovered import RecoveredPartitions
from tidelog.broker.shutdown import drain
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership import departures
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    ConfigsChanged,
    ConfigScope,
    TopicCreated,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject
from tidelog.identifiers import Epoch, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.storage.stores.memory import MemoryStore


def epoch_of(one: OneBroker) -> Epoch:
    return one.broker.membership.incarnation.epoch


async def shared_topic(one: OneBroker, *owners: OneBroker) -> TopicId:
    """A topic with a partition for each of these brokers, which all of them know."""
    topic_id = one.broker.environment.entropy.uuid()
    record = TopicCreated(topic_id, TOPIC, tuple(epoch_of(each) for each in owners))
    await one.broker.membership.metadata.append(epoch_of(one), lambda _: (record,))
    for each in owners:
        await each.broker.membership.metadata.refresh()
    return topic_id


async def until_listed(one: OneBroker) -> None:
    """Wait until the broker lists partitions that it was given."""
    listed = asyncio.Event()
    one.broker.ownership.recovery.subscribe(lambda _: listed.set())
    await listed.wait()


async def until_served(one: OneBroker, topic_id: TopicId, *partitions: int) -> None:
    """Wait until the broker has listed these partitions."""
    hosted = one.broker.writes.partitions
    while any(hosted.get(TopicPartition(topic_id, number)) is None for number in partitions):
        await until_listed(one)


async def take_over(one: OneBroker, dead: OneBroker, owners: Mapping[int, Epoch]) -> None:
    """Fence a broker and divide its partitions, as a broker does that judges it dead."""
    broker = one.broker
    metadata, mine = broker.membership.metadata, broker.membership.incarnation
    await metadata.append(mine.epoch, lambda _: (BrokerFenced(epoch_of(dead)),))

    def assign(state: ClusterState, ended: Epoch) -> Mapping[TopicPartition, Epoch]:
        return {place: owners[place.partition] for place in state.owned_by(ended)}

    await take_over_fenced(
        metadata,
        broker.environment.store,
        broker.environment.clock,
        broker.environment.entropy,
        mine,
        64,
        assign,
    )


class HeldOpenings:
    """Keeps brokers from opening recovered partitions, from `hold` until `may_end` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = RecoveredPartitions.advance
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

        async def advance(recovered: RecoveredPartitions, partitions: Iterable[Partition]) -> None:
            self.begun.set()
            await self.may_end.wait()
            await right(recovered, partitions)

        monkeypatch.setattr(RecoveredPartitions, "advance", advance)

    def hold(self) -> None:
        self.begun.clear()
        self.may_end.clear()


async def values(one: OneBroker, partition: int) -> list[bytes | None]:
    return [record.value for record in await one.read_all(partition)]


def test_each_broker_serves_its_partitions_alone() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            await shared_topic(first, first, second)
            for number, (owner, other) in enumerate([(first, second), (second, first)]):
                assert (await owner.produce(batch(b"x"), number)).error_code == 0
                refused = await other.produce(batch(b"x"), number)
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert refused.current_leader is not None, "KIP-951"
                owner_id = owner.broker.membership.incarnation.broker_id
                assert refused.current_leader.leader_id == owner_id
                fetched = await other.fetch(0, number)
                assert fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert fetched.current_leader is not None
                assert fetched.current_leader.leader_id == owner_id
                assert await values(owner, number) == [b"x"]

    run(story)


def test_running_brokers_divide_the_partitions_of_a_dead_broker() -> None:
    """Acknowledged records are there, and appends go on behind them; a later start finds both."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            async with here.broker(3, politely=False) as dead:
                topic_id = await shared_topic(dead, dead, dead, dead)
                for number in range(3):
                    await dead.produce(batch(b"%d" % number), number)
            await take_over(
                first, dead, {0: epoch_of(first), 1: epoch_of(second), 2: epoch_of(second)}
            )
            await second.broker.membership.metadata.refresh()
            await until_served(first, topic_id, 0)
            await until_served(second, topic_id, 1, 2)
            for number, owner in enumerate([first, second, second]):
                answer = await owner.produce(batch(b"more"), number)
                assert (answer.error_code, answer.base_offset) == (0, 1)
                assert await values(owner, number) == [b"%d" % number, b"more"]
        async with here.broker(4) as successor:
            for number in range(3):
                assert await values(successor, number) == [b"%d" % number, b"more"]

    run(story)


def test_partitions_that_were_written_lately_are_served_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_recovery, "TOGETHER_MAX", 2)
    monkeypatch.setattr(partition_recovery, "IDLE_TOGETHER_MAX", 3)
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)
    groups: list[set[int]] = []

    async def story() -> None:
        async with here.broker(1) as heir:
            heir.broker.ownership.recovery.subscribe(
                lambda images: groups.append({place.partition for place in images})
            )
            async with here.broker(2, politely=False) as dead:
                topic_id = await shared_topic(dead, *[dead] * 6)
                for number in range(6):
                    await dead.produce(batch(b"old"), number)
                await dead.broker.writes.checkpointer.checkpoint()
                await dead.produce(batch(b"gap"), 1)
                await dead.broker.writes.checkpointer.checkpoint()
                for number in (2, 5):
                    await dead.produce(batch(b"new"), number)
            await take_over(heir, dead, dict.fromkeys(range(6), epoch_of(heir)))
            await until_served(heir, topic_id, *range(6))
            # A slot also names the partitions of the slot before, so partition 1 may count as
            # written.
            assert groups[0] in ({2, 5}, {1, 2, 5})
            assert sum(map(len, groups)) == 6
            assert max(map(len, groups)) <= 3
            for number in range(6):
                assert (await values(heir, number))[0] == b"old"

    run(story)


def test_answers_about_leaders_wait_until_a_taken_partition_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(departures, "WAIT_SECONDS_MAX", 3600.0)
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)
    openings = HeldOpenings(monkeypatch)

    async def story() -> None:
        async with here.broker(1) as heir:
            async with here.broker(2, politely=False) as dead:
                topic_id = await shared_topic(dead, dead)
                await dead.produce(batch(b"x"))
            openings.hold()
            await take_over(heir, dead, {0: epoch_of(heir)})
            await openings.begun.wait()
            settled = asyncio.create_task(heir.broker.ownership.departures.settled())
            for _ in range(100):
                await asyncio.sleep(0)
            assert not settled.done()
            openings.may_end.set()
            await settled
            await until_served(heir, topic_id, 0)

    run(story)


def test_a_broker_that_does_not_know_a_topic_yet_learns_of_it_when_it_is_asked() -> None:
    here = World(MemoryStore(SystemClock()), broker_heartbeat_interval_ms=60_000)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            await first.broker.membership.metadata.refresh()
            record = TopicCreated(
                first.broker.environment.entropy.uuid(), TOPIC, (epoch_of(second),)
            )
            await first.broker.membership.metadata.append(epoch_of(first), lambda _: (record,))
            refused = await second.produce(batch(b"x"))
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await second.broker.membership.renewal.renewed()
            assert (await second.produce(batch(b"x"))).error_code == 0

    run(story)


def test_a_partition_is_given_away_and_comes_back() -> None:
    """The receiver continues the giver's log. So does the giver when it gets the partition back."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(first, first)
            place = TopicPartition(topic_id, 0)
            written: list[bytes | None] = []
            owner, other = first, second
            for number in range(5):
                value = b"%d" % number
                answer = await owner.produce(batch(value))
                assert (answer.error_code, answer.base_offset) == (0, number)
                written.append(value)
                page = owner.broker.metrics.exposition().decode()
                assert "tidelog_partitions_opening 0.0" in page
                assert "tidelog_transactions_markers_unwritten 0.0" in page
                given = await owner.broker.ownership.giving.give({place: epoch_of(other)})
                assert given == {place}
                refused = await owner.produce(batch(b"late"))
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                await other.broker.membership.metadata.refresh()
                await until_served(other, topic_id, 0)
                assert await values(other, 0) == written
                owner, other = other, owner

    run(story)


def test_a_move_is_finished_when_its_caller_gives_up() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(first, first)
            await first.produce(batch(b"a"))
            place = TopicPartition(topic_id, 0)
            asked = asyncio.create_task(
                first.broker.ownership.giving.give({place: epoch_of(second)})
            )
            while not (await first.produce(batch(b"more"))).error_code:
                pass
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            while first.broker.membership.state().owned_by(epoch_of(first)):
                await first.broker.membership.metadata.refresh()
            await second.broker.membership.metadata.refresh()
            await until_served(second, topic_id, 0)
            assert (await values(second, 0))[0] == b"a"

    run(story)


def test_a_partition_stays_when_its_receiver_is_not_live() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first:
            async with here.broker(2) as second:
                gone = epoch_of(second)
                topic_id = await shared_topic(first, first)
                await first.produce(batch(b"a"))
            assert (
                await first.broker.ownership.giving.give({TopicPartition(topic_id, 0): gone})
                == set()
            )
            assert (await first.produce(batch(b"b"))).error_code == 0
            assert await values(first, 0) == [b"a", b"b"]

    run(story)


def test_a_partition_that_stays_follows_the_settings_that_changed_meanwhile() -> None:
    """The topic gets other settings while a partition is being given away; the receiver ends."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2, politely=False) as second:
            topic_id = await shared_topic(first, first)
            place = TopicPartition(topic_id, 0)
            assert (await first.produce(batch(b"a"))).log_append_time_ms == -1
            metadata, receiver = first.broker.membership.metadata, epoch_of(second)
            changes = (
                ConfigsChanged(
                    ConfigScope.TOPIC, str(topic_id), {"message.timestamp.type": "LogAppendTime"}
                ),
                BrokerFenced(receiver),
            )
            giving = first.broker.ownership.giving
            async with metadata._lock:
                changing = asyncio.create_task(metadata.append(epoch_of(first), lambda _: changes))
                await until(lambda: metadata._appender is not None and not metadata._waiting)
                gift = asyncio.create_task(giving.give({place: receiver}))
                await until(lambda: place in giving.under_way)
            await changing
            assert await gift == set()
            assert (await first.produce(batch(b"b"))).log_append_time_ms > 0

    run(story)


def test_a_moved_partition_survives_the_death_of_giver_and_receiver() -> None:
    """Neither has written an opening image: the giver's WAL up to the move is the base."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1, politely=False) as first:
            async with here.broker(2, politely=False) as second:
                topic_id = await shared_topic(first, first, first)
                for value in (b"a", b"b"):
                    await first.produce(batch(value))
                await first.broker.writes.checkpointer.checkpoint()
                await first.produce(batch(b"c"))
                await first.broker.ownership.giving.give(
                    {TopicPartition(topic_id, 0): epoch_of(second)}
                )
            # The giver goes on with other partitions, and its checkpoints hold the given one.
            for _ in range(3):
                await first.produce(batch(b"x"), 1)
                await first.broker.writes.checkpointer.checkpoint()
        async with here.broker(3) as third:
            assert await values(third, 0) == [b"a", b"b", b"c"]
            assert await values(third, 1) == [b"x", b"x", b"x"]
            assert (await third.produce(batch(b"d"))).base_offset == 3

    run(story)


def test_a_broker_that_is_asked_to_end_gives_its_partitions_to_other_brokers() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            async with here.broker(3) as leaving:
                topic_id = await shared_topic(leaving, leaving, leaving)
                for number in range(2):
                    await leaving.produce(batch(b"%d" % number), number)
            state = await first.broker.membership.metadata.refresh()
            await second.broker.membership.metadata.refresh()
            owners = [
                tenures[-1].incarnation.epoch for tenures in state.topics[topic_id].partitions
            ]
            assert sorted(owners) == [epoch_of(first), epoch_of(second)]
            for number, epoch in enumerate(owners):
                owner = first if epoch == epoch_of(first) else second
                await until_served(owner, topic_id, number)
                assert await values(owner, number) == [b"%d" % number]

    run(story)


def test_a_drain_ends_although_a_damaged_partition_cannot_be_given() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as leaving:
            topic_id = await shared_topic(leaving, leaving, leaving)
            await leaving.produce(batch(b"a"), 0)
            partitions = leaving.broker.writes.partitions
            damaged = partitions.find(TopicPartition(topic_id, 1))
            partitions.condemn(damaged, CorruptObject("wal/1", "a flipped bit"))
            await drain(leaving.broker, 60_000)
            state = await first.broker.membership.metadata.refresh()
            assert state.owned_by(epoch_of(first)) == (TopicPartition(topic_id, 0),)
            assert state.owned_by(epoch_of(leaving)) == (TopicPartition(topic_id, 1),)

    run(story)


def test_a_newcomer_gets_its_share() -> None:
    here = World(
        MemoryStore(SystemClock()),
        wal_linger_ms=0,
        auto_leader_rebalance_enable=True,
        broker_heartbeat_interval_ms=50,
    )

    async def story() -> None:
        async with here.broker(1) as first:
            topic_id = await first.create_topic(partitions=10)
            for number in range(10):
                await first.produce(batch(b"%d" % number), number)
            async with here.broker(2) as second:
                while len(second.broker.writes.partitions) < 5:
                    await until_listed(second)
                state = second.broker.membership.state()
                assert len(state.owned_by(epoch_of(first))) == 5
                for place in state.owned_by(epoch_of(second)):
                    assert place.topic_id == topic_id
                    found = await values(second, place.partition)
                    assert found == [b"%d" % place.partition]

    run(story)


async def reassign(one: OneBroker, partition: int, broker_id: int) -> tuple[int, str | None]:
    wanted = [ReassignablePartition(partition_index=partition, replicas=[broker_id])]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=TOPIC, partitions=wanted)]
    )
    services = one.broker.services.cluster
    answer = await alter_partition_reassignments(services, request, one.context(0))
    ((result,),) = [topic.partitions for topic in answer.responses]
    return result.error_code, result.error_message


def test_any_broker_is_asked_to_move_a_partition() -> None:
    """The owner gives it away; another broker passes the request on to the owner."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second, here.broker(3) as third:
            topic_id = await shared_topic(first, first)
            await first.produce(batch(b"a"))
            owner = first
            for asked, receiver in ((first, second), (first, third), (third, third)):
                broker_id = receiver.broker.membership.incarnation.broker_id
                assert await reassign(asked, 0, broker_id) == (ErrorCode.NONE, None)
                await receiver.broker.membership.metadata.refresh()
                await until_served(receiver, topic_id, 0)
                assert await values(receiver, 0) == [b"a"]
                owner = receiver
            assert owner is third
            code, why = await reassign(first, 0, 7)
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert "there is no live broker 7" in str(why)

    run(story)


@pytest.mark.parametrize("left", [True, False], ids=["partly rolled", "wholly rolled"])
def test_a_partition_is_rolled_on_by_a_receiver_that_read_its_table_before(left: bool) -> None:
    """The receiver has an old view of the topic's table, from before the giver's roll."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(first, first, second)
            place = TopicPartition(topic_id, 0)
            await second.broker.topic_tables.tables.open(topic_id)
            await first.produce(batch(b"a"))
            await flush(first)
            # The receiver's base has no record in the WAL, and knows that the table has one.
            await first.broker.writes.checkpointer.checkpoint()
            if left:
                await first.produce(batch(b"b"))
            await first.broker.ownership.giving.give({place: epoch_of(second)})
            await second.broker.membership.metadata.refresh()
            await until_served(second, topic_id, 0)
            assert second.broker.writes.partitions.find(place).log.table_next == 1
            table = await second.broker.topic_tables.tables.open(topic_id)
            assert table.partition(0).next_offset == 1, "retention and compaction know the rows"
            await second.produce(batch(b"c"))
            await flush(second)
            assert await offsets(here.store, topic_id) == list(range(3 if left else 2))

    run(story)
