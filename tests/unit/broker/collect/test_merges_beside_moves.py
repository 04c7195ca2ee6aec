"""A merge that ends after its partition was given away leaves the partition alone (C3).

Otherwise the giver's frozen image names the merged object, and the slots that it named before may
go. The receiver may have read that image before the merge ended. Two rules keep its records: the
merge is refused, and a mark ends when a pass finds the receiver's own image (F2). Either is enough
here.
"""

from __future__ import annotations

import pytest

from tests.unit.broker.collect.collected_wal import world
from tests.unit.broker.collections import (
    checkpoint,
    collections,
    hold_tenure_reports,
    until_opened,
)
from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    shared_topic,
    until_served,
    values,
)
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode

pytestmark = pytest.mark.usefixtures("without_pauses")

WRITTEN: list[bytes | None] = [b"%d" % number for number in range(12)]


async def merged_behind_a_move(
    giver: OneBroker, receiver: OneBroker, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """The giver's merger copies a partition's batches, and reports to the log when the partition
    has moved."""
    topic_id = await shared_topic(giver, giver)
    place = TopicPartition(topic_id, 0)
    for value in WRITTEN:
        assert value is not None
        await giver.produce(batch(value))
    await checkpoint(giver)
    merger = giver.broker.maintenance.merger
    planned = await merger._plan(own=True)
    assert planned is not None
    plan, planned_for = planned
    stored = await merger._store_merged(plan, merger.merged.begin())
    assert stored is not None
    assert await giver.broker.ownership.giving.give({place: epoch_of(receiver)}) == {place}
    await receiver.broker.membership.metadata.refresh()
    await until_served(receiver, topic_id, 0)
    with monkeypatch.context() as broken:
        if not is_refused:
            broken.setattr(PartitionRegistry, "require", lambda *_: None)
        slot = merger._relocate(stored.moved, planned_for)
    assert (slot is None) == is_refused
    merger.merged.end(slot)
    if slot is not None:
        await giver.broker.writes.wal.durable(slot)
    await giver.broker.writes.checkpointer.checkpoint()


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "told"])
@pytest.mark.parametrize("is_opened", [True, False], ids=["opened in time", "opened later"])
def test_the_receivers_records_stay(
    is_refused: bool, is_opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = hold_tenure_reports(monkeypatch)

    async def story() -> None:
        here = world(wal_objects_max=2)
        async with (
            here.broker(1, politely=False) as giver,
            here.broker(2, politely=False) as receiver,
        ):
            await merged_behind_a_move(giver, receiver, monkeypatch, is_refused=is_refused)
            collectors = [collections(each, here.store) for each in (receiver, giver)]
            for collector in collectors:
                await collector.pass_once()
            if is_opened:
                opening.set()
                await until_opened(receiver)
            for _ in range(2):
                for collector in collectors:
                    await collector.pass_once()
            if is_refused or is_opened:
                assert await values(receiver, 0) == WRITTEN
            else:
                answer = await receiver.fetch(0)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run(story)
