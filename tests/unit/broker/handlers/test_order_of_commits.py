"""Commits that one connection sends without waiting for answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.unit.broker.group_client import GROUP, committed, find, ready, world
from tests.unit.broker.one_broker import TOPIC, run, services_of
from tidelog.broker.handlers.groups.group_offsets import offset_commit
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)


def test_commits_of_one_connection_take_effect_in_order_though_one_names_an_unknown_topic() -> None:
    async def story() -> None:
        async with world().broker() as broker:
            await broker.create_topic()
            await find(broker)
            services, context = services_of(broker.broker, offset_commit), broker.context(8)

            def commit(offset: int, *names: str) -> asyncio.Future[OffsetCommitResponse]:
                request = OffsetCommitRequest(
                    group_id=GROUP,
                    generation_id_or_member_epoch=-1,
                    topics=[
                        OffsetCommitRequestTopic(
                            name=name,
                            partitions=[OffsetCommitRequestPartition(committed_offset=offset)],
                        )
                        for name in names
                    ],
                )
                return asyncio.ensure_future(offset_commit(services, request, context))

            # The coordinator may be loading.
            while (await commit(1, TOPIC)).topics[0].partitions[0].error_code:
                pass
            first, second = commit(10, TOPIC, "absent"), commit(20, TOPIC)
            codes = [each.partitions[0].error_code for each in (await first).topics]
            assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            await second
            assert await committed(broker) == 20

    run(story)


class _HeldRenewal:
    """The renewal of a view that still waits for the store."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.done = asyncio.Event()

    async def renewed(self) -> None:
        self.asked.set()
        await self.done.wait()


def test_a_commit_that_waited_for_its_topic_yields_to_a_later_one() -> None:
    """The broker learns of the topic before the renewal of its view is over."""

    async def story() -> None:
        async with world().broker() as broker:
            await find(broker)
            await ready(broker)
            renewal = _HeldRenewal()
            services = replace(services_of(broker.broker, offset_commit), renewal=renewal)

            def commit(offset: int) -> asyncio.Future[OffsetCommitResponse]:
                partition = OffsetCommitRequestPartition(committed_offset=offset)
                request = OffsetCommitRequest(
                    group_id=GROUP,
                    generation_id_or_member_epoch=-1,
                    topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
                )
                return asyncio.ensure_future(offset_commit(services, request, broker.context(8)))

            early = commit(10)
            await renewal.asked.wait()
            await broker.create_topic()
            late = await commit(20)
            renewal.done.set()
            for answer in (late, await early):
                assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
            assert await committed(broker) == 20

    run(story)


def test_of_two_commits_that_waited_for_their_topic_the_later_one_counts() -> None:
    """A client sends the second one before the first one is answered."""

    async def story() -> None:
        async with world().broker() as broker:
            await find(broker)
            await ready(broker)
            renewal = _HeldRenewal()
            services = replace(services_of(broker.broker, offset_commit), renewal=renewal)
            waiting = []
            for offset in (10, 20):
                partition = OffsetCommitRequestPartition(committed_offset=offset)
                request = OffsetCommitRequest(
                    group_id=GROUP,
                    generation_id_or_member_epoch=-1,
                    topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
                )
                answer = offset_commit(services, request, broker.context(8))
                waiting.append(asyncio.ensure_future(answer))
                await renewal.asked.wait()
                renewal.asked.clear()
            await broker.create_topic()
            renewal.done.set()
            for each in waiting:
                (topic,) = (await each).topics
                assert topic.partitions[0].error_code == ErrorCode.NONE
            assert await committed(broker) == 20

    run(story)
