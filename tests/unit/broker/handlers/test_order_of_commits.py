"""Commits that one connection sends without waiting for answers."""

from __future__ import annotations

import asyncio

from tests.unit.broker.group_client import GROUP, committed, find, world
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
