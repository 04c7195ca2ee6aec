"""The metadata log: many writers and one history, through all faults of the store."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.coordinator.cluster.samples import FLIGHTS, NOWHERE, registered
from tests.unit.coordinator.cluster.world import LOG, World, entry_key, simulate, within
from tidelog.coordinator.cluster.log.append_group import Build
from tidelog.coordinator.cluster.log.log_view import LogAbandoned
from tidelog.coordinator.cluster.log.metadata_log import EntryTooLarge
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    ConfigsChanged,
    ConfigScope,
    IncarnationRetired,
    IncarnationsForgotten,
    Record,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject, Fenced, Refused
from tidelog.identifiers import Slot
from tidelog.storage.object_store import StoreError, StoreNotApplied


class NoRoom(Refused):
    """The refusal of a caller's own rule."""


def test_waiting_changes_are_appended_together() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        names = [f"topic-{n}" for n in range(300)]
        sequences = await asyncio.gather(*(broker.create(name) for name in names))
        assert set(sequences) <= {2, 3}
        assert broker.log.state.sequence <= 3
        assert {topic.name for topic in broker.log.state.topics.values()} == set(names)
        assert world.replayed() == broker.log.state

    simulate(story)


def test_a_registration_is_alone_in_its_entry() -> None:
    async def story(world: World) -> None:
        log = await world.log(world.process("a"))

        def build(broker_id: int) -> Build:
            return lambda _: (registered(broker_id),)

        epochs = await asyncio.gather(*(log.append(None, build(n)) for n in range(4)))
        assert sorted(epochs) == [1, 2, 3, 4]
        assert sorted(log.state.live_epochs) == [0, 1, 2, 3]

    simulate(story)


def test_in_one_entry_each_change_sees_the_earlier_changes() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))

        def create_once(state: ClusterState) -> tuple[Record, ...]:
            if state.topic_named("once") is not None:
                raise NoRoom("the topic exists")
            return (TopicCreated(broker.process.entropy.uuid(), "once", (broker.epoch,)),)

        outcomes = await asyncio.gather(
            *(broker.log.append(broker.epoch, create_once) for _ in range(5)),
            return_exceptions=True,
        )
        assert sorted(map(str, outcomes)) == ["2"] + ["the topic exists"] * 4
        assert broker.log.state.sequence == 2

    simulate(story)


def test_a_refusal_reaches_only_its_caller() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))

        def refuse(state: ClusterState) -> tuple[Record, ...]:
            raise NoRoom("no room")

        def fail(state: ClusterState) -> tuple[Record, ...]:
            raise ZeroDivisionError

        refused, made, invalid, bug = await asyncio.gather(
            broker.log.append(broker.epoch, refuse),
            broker.create("made"),
            broker.log.append(broker.epoch, lambda _: (TopicDeleted(NOWHERE),)),
            broker.log.append(broker.epoch, fail),
            return_exceptions=True,
        )
        assert isinstance(refused, NoRoom)
        assert made == 2
        assert isinstance(invalid, InvalidRecord)
        assert isinstance(bug, ZeroDivisionError)
        assert world.replayed() == broker.log.state

    simulate(story)


def test_a_change_that_is_nothing_writes_nothing() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        assert await broker.log.append(broker.epoch, lambda _: ()) == 1
        assert len(world.keys(LOG)) == 2

    simulate(story)


def test_a_refusal_rests_on_the_newest_state() -> None:
    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        await first.create("flights")
        second = await world.broker(2, world.process("b"))
        topic = second.log.state.topic_named("flights")
        assert topic is not None
        await second.log.append(second.epoch, lambda _: (TopicDeleted(topic.topic_id),))

        def create(state: ClusterState) -> tuple[Record, ...]:
            if state.topic_named("flights") is not None:
                raise NoRoom("the topic exists")
            return (TopicCreated(FLIGHTS, "flights", (first.epoch,)),)

        # The first broker has not heard of the deletion, and yet must not claim the opposite.
        assert first.log.state.topic_named("flights") is not None
        await first.log.append(first.epoch, create)
        assert first.log.state.topic_named("flights") is not None
        assert world.replayed() == first.log.state

    simulate(story)


def test_a_change_that_is_overtaken_is_decided_again_on_the_newer_state() -> None:
    async def story(world: World) -> None:
        brokers = [await world.broker(n, world.process(f"p{n}")) for n in range(1, 4)]
        seen: list[int] = []

        def count(state: ClusterState) -> tuple[Record, ...]:
            value = state.configs(ConfigScope.CLUSTER, "").get("counter", "0")
            seen.append(int(value))
            overrides = {"counter": str(int(value) + 1)}
            return (ConfigsChanged(ConfigScope.CLUSTER, "", overrides),)

        for _ in range(10):
            await asyncio.gather(*(broker.log.append(broker.epoch, count) for broker in brokers))
        state = world.replayed()
        assert state.configs(ConfigScope.CLUSTER, "") == {"counter": "30"}
        assert len(seen) > 30

    simulate(story)


def test_subscribers_hear_of_every_entry_in_order_from_any_writer() -> None:
    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        second = await world.broker(2, world.process("b"))
        heard: list[tuple[int, int, tuple[str, ...]]] = []

        def listen(sequence: int, records: object) -> None:
            names = tuple(type(record).__name__ for record in records)  # type: ignore[attr-defined]
            heard.append((sequence, first.log.state.sequence, names))

        end = first.log.subscribe(listen)
        await second.create("x")
        await first.create("y")
        await second.create("z")
        await first.log.refresh()
        assert heard == [
            (2, 2, ("BrokerRegistered",)),
            (3, 3, ("TopicCreated",)),
            (4, 4, ("TopicCreated",)),
            (5, 5, ("TopicCreated",)),
        ]
        end()
        await first.create("w")
        assert len(heard) == 4

    simulate(story)


def test_a_subscriber_of_some_kinds_of_records_hears_of_no_other_entry() -> None:
    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        heard: list[int] = []
        end = first.log.subscribe(
            lambda sequence, _: heard.append(sequence), BrokerRegistered, BrokerFenced
        )
        second = await world.broker(2, world.process("b"))
        await first.create("x")
        await first.log.append(first.epoch, lambda _: (BrokerFenced(second.epoch),))
        assert heard == [2, 4]
        end()
        await world.broker(3, world.process("c"))
        await first.log.refresh()
        assert heard == [2, 4]

    simulate(story)


def test_a_fenced_author_is_told_so_and_changes_nothing() -> None:
    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        second = await world.broker(2, world.process("b"))
        await second.log.append(second.epoch, lambda _: (BrokerFenced(first.epoch),))
        with pytest.raises(Fenced, match="incarnation 1-1 was fenced at or before entry 3"):
            await first.create("late")
        assert world.replayed() == second.log.state
        assert second.log.state.topics == {}

    simulate(story)


def test_an_author_that_was_fenced_and_forgotten_is_told_that_it_is_fenced() -> None:
    """Otherwise a broker that was paused for long would take its own fence for a refused change,
    and go on."""

    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        second = await world.broker(2, world.process("b"))
        epoch = first.epoch
        records = (
            BrokerFenced(epoch),
            IncarnationRetired(epoch, Slot(0), ()),
            IncarnationsForgotten((epoch,)),
        )
        await second.log.append(second.epoch, lambda _: records)
        assert second.log.state.incarnation(epoch) is None
        with pytest.raises(Fenced, match="of epoch 1 was fenced at or before entry 3"):
            await first.show_life()
        with pytest.raises(Fenced, match="epoch 1"):
            await within(first.process, first.log.append(epoch, lambda _: ()))
        assert world.replayed() == second.log.state

    simulate(story)


def test_a_change_that_does_not_fit_is_refused_and_the_others_are_divided() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))

        def wide(name: str, size_bytes: int) -> TopicCreated:
            configs = {"note": "x" * size_bytes}
            uuid = broker.process.entropy.uuid()
            return TopicCreated(uuid, name, (broker.epoch,), configs)

        records = [wide(f"t{n}", 3_000_000) for n in range(5)]
        too_wide = wide("never", 9_000_000)

        def build(record: Record) -> Build:
            return lambda _: (record,)

        outcomes = await asyncio.gather(
            *(broker.log.append(broker.epoch, build(each)) for each in [*records, too_wide]),
            return_exceptions=True,
        )
        assert isinstance(outcomes[5], EntryTooLarge)
        assert len(broker.log.state.topics) == 5
        assert world.replayed() == broker.log.state

    simulate(story)


def test_more_changes_than_may_wait_are_refused() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), waiting_appends_max=3)
        outcomes = await asyncio.gather(
            *(broker.create(f"t{n}") for n in range(10)), return_exceptions=True
        )
        refused = [each for each in outcomes if isinstance(each, Refused)]
        assert refused
        assert all("are waiting; try later" in str(each) for each in refused)
        assert len(broker.log.state.topics) == 10 - len(refused)

    simulate(story)


def test_an_append_that_was_certainly_not_applied_may_be_repeated() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), append_timeout_ms=5000)
        world.store.fail_for(20, share=1.0)
        with pytest.raises(StoreNotApplied, match="not appended"):
            await broker.create("x")
        await asyncio.sleep(20)
        await broker.create("x")
        assert world.replayed() == broker.log.state

    simulate(story)


def test_an_append_whose_fate_stays_unknown_ends_the_incarnation() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"), append_timeout_ms=5000)
        world.store.settings.request_lost_probability = 1.0
        with pytest.raises(LogAbandoned, match="may or may not be there"):
            await broker.create("x")
        world.store.heal()
        for _ in range(2):
            with pytest.raises(LogAbandoned):
                await broker.create("y")
            with pytest.raises(LogAbandoned):
                await broker.log.refresh()
        # A new incarnation learns the outcome from the bucket.
        again = await world.log(world.process("b"))
        assert again.state == world.replayed()

    simulate(story)


def test_a_lost_answer_is_found_out() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        world.store.settings.reply_lost_probability = 1.0
        assert await broker.create("x") == 2
        assert world.replayed() == broker.log.state

    simulate(story)


def test_a_caller_that_gives_up_does_not_disturb_other_callers() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        impatient = asyncio.create_task(broker.create("x"))
        patient = asyncio.create_task(broker.create("y"))
        await asyncio.sleep(0.001)
        impatient.cancel()
        assert await patient in (2, 3)
        assert broker.log.state.topic_named("y") is not None
        assert world.replayed() == broker.log.state

    simulate(story)


def test_closing_the_log_answers_waiting_callers() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        waiting = asyncio.create_task(broker.create("x"))
        await asyncio.sleep(0.001)
        await broker.log.close()
        with pytest.raises(LogAbandoned, match=r"closed|in the middle of an append"):
            await waiting
        with pytest.raises(LogAbandoned):
            await broker.log.refresh()

    simulate(story)


def test_following_survives_passing_faults_and_ends_with_the_view() -> None:
    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        second = await world.broker(2, world.process("b"))
        following = within(second.process, second.log.follow(1000))
        world.store.fail_for(5, share=1.0)
        await asyncio.sleep(6)
        sequence = await first.create("x")
        await asyncio.sleep(2)
        assert second.log.state.sequence == sequence
        world.place(entry_key(sequence + 1), b"rubbish")
        with pytest.raises(CorruptObject):
            await following

    simulate(story)


@pytest.mark.parametrize("seed", range(20))
def test_all_brokers_see_one_history_over_a_faulty_store(seed: int) -> None:
    """Five writers with lost and late answers and crashes. Each acknowledged change is in the log
    once."""

    async def story(world: World) -> None:
        brokers = [
            await world.broker(n, world.process(f"p{n}"), snapshot_interval_entries=10)
            for n in range(1, 6)
        ]
        world.store.settings.reply_lost_probability = 0.1
        world.store.settings.request_lost_probability = 0.1
        world.store.settings.delayed_probability = 0.05
        world.store.settings.repeated_probability = 0.1
        world.store.settings.refused_probability = 0.05
        made: dict[str, int] = {}
        unknown: set[str] = set()

        async def work(index: int) -> None:
            for n in range(12):
                name = f"t-{index}-{n}"
                try:
                    made[name] = await brokers[index].create(name)
                except LogAbandoned:
                    unknown.add(name)
                    return
                except StoreError:
                    continue

        working = [asyncio.create_task(work(index)) for index in range(5)]
        await asyncio.sleep(1.0 + seed / 10)
        brokers[0].process.kill()
        working[0].cancel()
        await asyncio.wait(working[1:])
        await asyncio.sleep(60)
        world.store.heal()
        state = world.replayed()
        names = {topic.name for topic in state.topics.values()}
        assert made.keys() <= names
        doubtful = {name for name in names - made.keys() if not name.startswith("t-0-")}
        assert doubtful <= unknown
        at = {
            record.name: entry.sequence
            for entry in world.entries()
            for record in entry.records
            if isinstance(record, TopicCreated)
        }
        assert made.items() <= at.items()
        for broker in brokers[1:]:
            try:
                seen = await broker.log.refresh()
            except LogAbandoned:
                continue
            assert seen == state
        assert (await world.log(world.process("reader"), create=False)).state == state

    simulate(story, seed)
