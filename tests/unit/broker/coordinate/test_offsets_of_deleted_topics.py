"""A topic is deleted while no coordinator of the group is ready. A new topic of the same name does
not begin at the old topic's committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.dispatch.test_request_order import committed as commit_request
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.ownership.given_away import OTHER
from tests.unit.broker.sink_world import world
from tests.unit.broker.transactional_client import (
    GROUP,
    TransactionalClient,
    ask,
    committed_offset,
    find,
    loaded,
)
from tidelog.broker.handlers.groups.group_offsets import offset_commit
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import BrokerFenced, TopicCreated, TopicDeleted
from tidelog.coordinator.cluster.records.topics import new_topic_id
from tidelog.coordinator.group.commands import CommitOffsets, OffsetToCommit
from tidelog.coordinator.log_codec import decode_objects
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import Epoch
from tidelog.protocol.error_codes import ErrorCode
from tidelog.workers.offload import InlineOffload

OK = ErrorCode.NONE
NOTHING = -1


async def commit(one: OneBroker, offset: int) -> None:
    request, _ = commit_request(offset)
    answer = await ask(one, offset_commit, request, 8)
    assert answer.topics[0].partitions[0].error_code == OK


async def create(one: OneBroker) -> UUID:
    """Create a topic as CreateTopics does, with an id that contains the entry's number."""
    epoch, log = one.broker.membership.incarnation.epoch, one.broker.membership.metadata
    entropy = one.broker.environment.entropy.uuid()
    created: list[UUID] = []

    def build(state: Any) -> tuple[TopicCreated, ...]:
        created.append(new_topic_id(state.sequence + 1, entropy))
        return (TopicCreated(created[-1], TOPIC, (epoch,)),)

    await log.append(epoch, build)
    return created[-1]


async def replace_topic(here: World, topic_id: UUID, *, again: bool) -> None:
    """Another broker deletes the topic, and may create a new one of the same name."""
    log = await MetadataLog.open(here.store, SystemClock(), SeededEntropy(77))
    other = Epoch(await log.append(None, lambda _: (OTHER,)))
    await log.append(other, lambda _: (TopicDeleted(topic_id),))
    if again:
        new = new_topic_id(log.state.sequence + 1, SeededEntropy(5).uuid())
        await log.append(other, lambda _: (TopicCreated(new, TOPIC, (other,)),))
    await log.append(other, lambda _: (BrokerFenced(other),))
    await log.close()


@pytest.mark.parametrize("from_snapshot", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_offsets_of_deleted_topics_are_forgotten_at_the_load(
    again: bool, from_snapshot: bool
) -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await create(one)
            await find(one, GROUP, 0)
            await loaded(one)
            await commit(one, 7)
            if from_snapshot:
                for runtime in one.broker.coordination.coordinators.groups.all():
                    await runtime.snapshot()
        await replace_topic(here, topic_id, again=again)
        for _ in range(2):
            # Each broker may lose its decision to forget the offsets. The next one decides the same
            # again.
            async with here.broker(politely=False) as one:
                await loaded(one)
                assert await committed_offset(one) == NOTHING
                if not again:
                    await create(one)
                    again_later = await committed_offset(one)
                    assert again_later == NOTHING
                    await one.delete_topic(
                        one.broker.membership.metadata.state.topic_named(TOPIC).topic_id
                    )  # type: ignore[union-attr]
        async with here.broker() as one:
            await loaded(one)
            if not again:
                await create(one)
            await one.produce(batch(b"new"))
            await commit(one, 1)
        async with here.broker() as one:
            await loaded(one)
            assert await committed_offset(one) == 1

    run(story)


class HeldLoads(InlineOffload):
    """Holds coordinators back that decode their logs."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is decode_objects:
            await self.let_go.wait()
        return function(*args, **kwargs)


def test_offsets_of_a_topic_deleted_during_a_load_are_removed_with_transactional_offsets() -> None:
    here = world()
    here.offload = held = HeldLoads()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await create(one)
            await find(one, GROUP, 0)
            await loaded(one)
            client = TransactionalClient(one)
            assert await client.init() is OK
            assert await client.commit_offset(9) is OK
        held.let_go.clear()
        async with here.broker() as one:
            await one.delete_topic(topic_id)
            await create(one)
            held.let_go.set()
            await loaded(one)
            client.broker = one
            assert await client.commit() is OK
            assert await committed_offset(one) == NOTHING

    run(story)


def test_offsets_of_the_first_release_count_for_the_topic_of_that_name() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic()
            await find(one, GROUP, 0)
            await loaded(one)
            runtime = one.broker.coordination.coordinators.groups.find(GROUP)
            offsets = [OffsetToCommit(TOPIC, 0, 7, -1, "")]
            await runtime.submit(
                CommitOffsets(
                    group_id=GROUP,
                    generation=-1,
                    member_id="",
                    instance_id=None,
                    retention_ms=None,
                    knows_missing_group=True,
                    offsets=offsets,
                )
            )
        async with here.broker(politely=False) as one:
            await loaded(one)
            assert await committed_offset(one) == 7
        await replace_topic(here, topic_id, again=False)
        async with here.broker() as one:
            await loaded(one)
            await create(one)
            assert await committed_offset(one) == NOTHING

    run(story)


def test_ready_coordinators_forget_them_at_once() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await create(one)
            await find(one, GROUP, 0)
            await loaded(one)
            await commit(one, 7)
            await one.delete_topic(topic_id)
            await create(one)
            assert await committed_offset(one) == NOTHING
            await commit(one, 3)
            assert await committed_offset(one) == 3

    run(story)
