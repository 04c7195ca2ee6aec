"""Brokers on one bucket share the surveys that they have read. Each broker collects its part."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.unit.broker.collect.test_collector_passes import Counted
from tests.unit.broker.collections import Collections, collections, objects
from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    shared_topic,
    until_served,
    values,
)
from tests.unit.broker.rolled import flush
from tidelog.broker.collect.shares import SharedWork, dead_wals, is_responsible, passes_to_wait
from tidelog.broker.collect.survey_file import (
    SURVEY_KEY,
    SurveyFile,
    decode_survey,
    encode_survey,
)
from tidelog.bucket.survey import Survey, WalReferences
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership.assignment import spread
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.errors import CorruptObject
from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    MetadataStamp,
    Slot,
    TopicPartition,
)
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_prefix
from tidelog.wal.recover.slot_runs import SlotRun
from tidelog.workers.offload import InlineOffload

ONE, OTHER = Incarnation(BrokerId(1), Epoch(3)), Incarnation(BrokerId(2), Epoch(8))
SURVEY = Survey(
    MetadataStamp(9, 77),
    {
        ONE: WalReferences(
            True, Slot(40), (SlotRun(3, 5), SlotRun(9, 10)), frozenset({"merged/1-3/0.merged"})
        ),
        OTHER: WalReferences(False),
    },
)


async def slots(store: MemoryStore, one: OneBroker) -> list[str]:
    return await objects(store, wal_prefix(one.broker.membership.incarnation))


async def produced_and_rolled(one: OneBroker, partition: int, batches: int) -> None:
    """Slots whose records are in the table, and a checkpoint taken after the roll."""
    for _ in range(batches):
        await one.produce(batch(b"x"), partition)
    await flush(one, partition)
    await one.broker.writes.checkpointer.checkpoint()


async def buried(one: OneBroker, dead: OneBroker) -> None:
    """Fence a broker, unless its broken connection has shown it, and divide its partitions."""
    broker, epoch = one.broker, epoch_of(dead)
    metadata = broker.membership.metadata
    await metadata.append(
        epoch_of(one), lambda state: [BrokerFenced(epoch)] if state.is_live(epoch) else []
    )
    await take_over_fenced(
        metadata,
        broker.environment.store,
        broker.environment.clock,
        broker.environment.entropy,
        broker.membership.incarnation,
        64,
        spread,
    )


def test_a_round_of_passes_of_n_brokers_reads_n_checkpoints() -> None:
    async def story() -> None:
        store = Counted(SystemClock())  # type: ignore[arg-type]
        here = World(store, wal_linger_ms=0)
        async with AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(here.broker(n)) for n in range(1, 6)]
            await shared_topic(brokers[0], *brokers)
            collectors = [collections(each, store) for each in brokers]
            rounds = 6
            read: Counter[str] = Counter()
            for _ in range(rounds):
                for number, each in enumerate(brokers):
                    await produced_and_rolled(each, number, 3)
                store.counts.clear()
                for collector in collectors:
                    await collector.pass_once()
                read += Counter(store.counts)
            # Without the survey there are 25 a round.
            assert read["get checkpoint"] <= rounds * 5 + 5
            for each in brokers:
                assert len(await slots(store, each)) < 3 * rounds

    run(story)


def test_the_next_in_rank_makes_the_survey_if_no_other_does_and_deletes_nothing_needed() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(first, first, second, first, second)
            state = second.broker.membership.state()
            me, other = first, second
            if is_responsible(state, first.broker.membership.incarnation, SharedWork.FOLDERS):
                me, other = second, first
            assert passes_to_wait(state, me.broker.membership.incarnation) == 1
            mine = 0 if me is first else 1
            # The other broker refers to slots of this WAL, since a partition has moved there.
            for _ in range(3):
                await me.produce(batch(b"kept"), mine)
            place = TopicPartition(topic_id, mine)
            await me.broker.ownership.giving.give({place: epoch_of(other)})
            await other.broker.membership.metadata.refresh()
            await until_served(other, topic_id, mine)
            await other.produce(batch(b"more"), mine)
            for each in (me, other):
                await each.broker.writes.checkpointer.checkpoint()
            collector = collections(me, here.store)
            await collector.pass_once()
            assert SURVEY_KEY not in await objects(here.store), "it waits for the other survey"
            for _ in range(4):
                await collector.pass_once()
            assert SURVEY_KEY in await objects(here.store)
            assert await slots(here.store, me), "the other broker refers to the slots"
            assert await values(other, mine) == [b"kept"] * 3 + [b"more"]
            await produced_and_rolled(other, mine, 1)
            await other.broker.writes.tenure_reports.flush()
            await me.broker.membership.metadata.refresh()
            await me.produce(batch(b"elsewhere"), mine + 2)
            await me.broker.writes.checkpointer.checkpoint()
            for _ in range(6):
                await collector.pass_once()
            # The slot with a batch of the other partition is left.
            assert len(await slots(here.store, me)) == 1

    run(story)


def test_the_wals_of_the_dead_are_divided_and_go() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            dead: list[OneBroker] = []
            for number in range(3, 9):
                async with here.broker(number, politely=False) as dying:
                    await shared_topic(dying, dying) if not dead else None
                    dead.append(dying)
            topic_id = next(iter(dead[0].broker.membership.state().topics))
            for each in dead:
                await buried(first, each)
            leader = first.broker.membership.state().leader(TopicPartition(topic_id, 0))
            assert leader is not None
            owner = next(o for o in (first, second) if epoch_of(o) == leader.incarnation.epoch)
            await until_served(owner, topic_id, 0)
            await second.broker.membership.metadata.refresh()
            state = second.broker.membership.state()
            shares = [
                set(dead_wals(state, one.broker.membership.incarnation)) for one in (first, second)
            ]
            assert all(shares), "both have some"
            await produced_and_rolled(owner, 0, 2)
            await owner.broker.writes.tenure_reports.flush()
            for each in (first, second):
                await each.broker.membership.metadata.refresh()
            passes: list[Collections] = [collections(one, here.store) for one in (first, second)]
            for _ in range(6):
                for collector in passes:
                    await collector.pass_once()
            for each in dead:
                left = await slots(here.store, each)
                assert len(left) <= 1, "its seal"

    run(story)


def test_a_survey_is_stored_whole_and_a_damaged_one_is_refused_by_its_key() -> None:
    data = encode_survey(SURVEY)
    assert decode_survey(SURVEY_KEY, data) == SURVEY
    for wrong in (data[:-9], data.replace(b"[3,5]", b"[5,3]"), b"", b"{}"):
        with pytest.raises(CorruptObject) as error:
            decode_survey(SURVEY_KEY, wrong)
        assert error.value.key == SURVEY_KEY
    # An incarnation that registered later keeps all slots.
    later = SURVEY.wal(Incarnation(BrokerId(1), Epoch(10)))
    assert (later.is_needed, later.floor) == (True, 0)


def test_a_survey_of_another_history_judges_nothing() -> None:
    """Such a survey appears when a part of the bucket was restored from a copy."""
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            await shared_topic(first, first, second, first, second)
            me = second
            if is_responsible(
                second.broker.membership.state(),
                second.broker.membership.incarnation,
                SharedWork.FOLDERS,
            ):
                me = first
            await me.produce(batch(b"kept"), 0 if me is first else 1)
            before = await slots(here.store, me)
            await me.broker.membership.metadata.refresh()
            stamp = me.broker.membership.state().stamp
            lets_all_go = {
                me.broker.membership.incarnation: WalReferences(
                    True, Slot(1 << 40), (), frozenset()
                )
            }
            other = replace(stamp, checksum=stamp.checksum ^ 1)
            await SurveyFile(here.store, InlineOffload()).write(Survey(other, lets_all_go))
            collector = collections(me, here.store)
            await collector.pass_once()
            assert await slots(here.store, me) == before
            for _ in range(3):
                await collector.pass_once()
            made = decode_survey(SURVEY_KEY, (await here.store.get(SURVEY_KEY)).data)
            assert made.stamp == stamp, "the broker makes its own"

    run(story)


def test_a_survey_that_cannot_be_read_is_no_survey() -> None:
    async def story() -> None:
        store = MemoryStore(SystemClock())
        writer, reader = (SurveyFile(store, InlineOffload()) for _ in range(2))
        await reader.look()
        assert (reader.survey, reader.unchanged) == (None, 1)
        await writer.write(SURVEY)
        await reader.look()
        assert (reader.survey, reader.unchanged) == (SURVEY, 0)
        await reader.look()
        assert (reader.survey, reader.unchanged) == (SURVEY, 1)
        await store.put(SURVEY_KEY, b"nonsense")
        for number in (2, 3):
            await reader.look()
            assert (reader.survey, reader.unchanged) == (None, number)
        await writer.write(SURVEY)
        await reader.look()
        assert (reader.survey, reader.unchanged) == (SURVEY, 0)

    asyncio.run(story())
