"""WAL objects and checkpoints are deleted when no process needs them, and never before."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.unit.broker.collect.collected_wal import roll, values, world
from tests.unit.broker.collections import (
    by_folder,
    checkpoint,
    collections,
    forget_memory,
    hold_tenure_reports,
    objects,
    until_opened,
)
from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.credential_files import change_credentials
from tidelog.coordinator.cluster.records.credentials import (
    CREDENTIALS_PREFIX,
    CREDENTIALS_SUFFIX,
    Credentials,
)
from tidelog.coordinator.cluster.records.records import LossAccepted
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import Slot
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_key, wal_prefix
from tidelog.wal.write.checkpoint import (
    CHECKPOINT_FORMAT_VERSION,
    CHECKPOINT_MAGIC,
    checkpoint_key,
    list_checkpoints,
    newest_checkpoint,
)

pytestmark = pytest.mark.usefixtures("without_pauses")


async def four_slots(one: OneBroker) -> UUID:
    """A topic with a record in each of four slots."""
    topic_id = await one.create_topic(retention_ms="-1")
    for number in range(4):
        await one.produce(batch(b"%d" % number))
    return topic_id


def test_slots_go_that_are_rolled_and_below_the_newest_checkpoint() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1")
            for number in range(10):
                await one.produce(batch(b"%d" % number))
            collecting = collections(one, here.store)
            wal = wal_prefix(one.broker.membership.incarnation)
            roll(one, topic_id, 0, 6)
            await collecting.collect()
            assert len(await objects(here.store, wal)) == 10, "no checkpoint knows the roll"
            await checkpoint(one)
            await one.produce(batch(b"10"))
            await collecting.collect()
            # The opening image shares the first slot; offsets 6 to 9 and the slot above the floor.
            left = [
                wal_key(one.broker.membership.incarnation, Slot(slot)) for slot in (6, 7, 8, 9, 10)
            ]
            assert await objects(here.store, wal) == left
            assert collecting.metrics.objects == {"wal": 6}
            assert collecting.metrics.bytes["wal"] > 6 * 64
            forget_memory(one)
            assert await values(one, start=6) == [b"%d" % number for number in range(6, 11)]
        async with here.broker() as one:
            assert await values(one, start=6) == [b"%d" % number for number in range(6, 11)]
            assert (await one.produce(batch(b"11"))).base_offset == 11

    run(story)


def test_an_idle_broker_s_slots_go_that_were_rolled_behind_its_newest_checkpoint() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await four_slots(one)
            await checkpoint(one)
            roll(one, topic_id, 0, 4)
            merger = one.broker.maintenance.merger
            merger._checkpointed_at -= merger._checkpoint_seconds
            await merger.maintain()
            await collections(one, here.store).collect()
            assert await objects(here.store, wal_prefix(one.broker.membership.incarnation)) == []

    run(story)


def test_a_marked_object_is_judged_again_after_the_grace() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await four_slots(one)
            roll(one, topic_id, 0, 3)
            await checkpoint(one)
            patient = collections(one, here.store, grace_seconds=3600.0)
            for _ in range(3):
                await patient.collect()
            assert (await by_folder(here.store))["wal"] == 4
            assert patient.metrics.marked == {"wal": 3}
            patient.marks.slots._grace_seconds = 0.0
            await patient.pass_once()
            assert (await by_folder(here.store))["wal"] == 1
            await patient.pass_once()
            assert patient.metrics.marked == {"wal": 0}

    run(story)


def test_older_checkpoints_go_and_the_newest_stays() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            for number in range(3):
                await one.produce(batch(b"%d" % number))
                await checkpoint(one)
            me = one.broker.membership.incarnation
            assert len(await list_checkpoints(here.store, me)) == 3
            await collections(one, here.store).collect()
            assert await list_checkpoints(here.store, me) == [3]
        async with here.broker() as one:
            assert await values(one) == [b"0", b"1", b"2"]

    run(story)


def test_a_retired_wal_goes_but_for_its_seal_when_its_partitions_are_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening = hold_tenure_reports(monkeypatch)

    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic(retention_ms="-1", partitions=3)
            for number in range(3):
                await one.produce(batch(b"of the first"), number)
            first = one.broker.membership.incarnation
        async with here.broker(politely=False) as one:
            end = one.broker.membership.metadata.state.retired[first.epoch].end_slot
            await one.produce(batch(b"of the second"))
            await checkpoint(one)
            await one.broker.writes.tenure_reports.flush()
            collecting = collections(one, here.store)
            await collecting.collect()
            assert len(await objects(here.store, wal_prefix(first))) >= 4, "two are not opened"
            for number in range(3):
                roll(one, topic_id, number, 1)
            opening.set()
            await until_opened(one)
            # The images in the newest checkpoint may be from before the rolls.
            await one.produce(batch(b"of the second"))
            await checkpoint(one)
            await collecting.collect()
            assert await objects(here.store, wal_prefix(first)) == [wal_key(first, end)]
            assert await newest_checkpoint(here.store, first) is None
            assert await values(one, start=1) == [b"of the second"] * 2
        async with here.broker() as one:
            assert await values(one, start=1) == [b"of the second"] * 2
            assert (await one.offsets(-1, 2)).offset == 1

    run(story)


def test_checkpoints_of_many_retired_wals_go_in_several_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass that lists a part of them does not take the others' owners for emptied."""
    monkeypatch.setattr("tidelog.broker.collect.collector.LISTED_ONE_BY_ONE_MAX", 0)
    monkeypatch.setattr("tidelog.broker.collect.collector.LISTED_MAX", 2)

    async def story() -> None:
        here = world()
        dead = []
        for number in range(3):
            async with here.broker(politely=False) as one:
                if number == 0:
                    await one.create_topic(retention_ms="-1")
                await one.produce(batch(b"%d" % number))
                await checkpoint(one)
                await one.broker.writes.tenure_reports.flush()
                dead.append(one.broker.membership.incarnation)
        async with here.broker(politely=False) as one:
            await until_opened(one)
            await one.produce(batch(b"last"))
            await checkpoint(one)
            await one.broker.writes.tenure_reports.flush()
            collecting = collections(one, here.store)
            for _ in range(6):
                await collecting.collect()
            assert [await newest_checkpoint(here.store, each) for each in dead] == [None] * 3

    run(story)


def test_records_of_a_retired_wal_stay_as_long_as_a_partition_has_them_nowhere_else() -> None:
    async def story() -> None:
        here = world()
        for life in range(4):
            async with here.broker(politely=life % 2 == 0) as one:
                if life == 0:
                    await one.create_topic(retention_ms="-1")
                await one.produce(batch(b"%d" % life))
                merger = one.broker.maintenance.merger
                await merger.maintain()
                await one.broker.writes.tenure_reports.flush()
                await collections(one, here.store).collect()
                forget_memory(one)
                assert await values(one) == [b"%d" % number for number in range(life + 1)]
        async with here.broker() as one:
            assert await values(one) == [b"0", b"1", b"2", b"3"]

    run(story)


def test_superseded_snapshots_of_a_state_go() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            origin = SnapshotOrigin("cluster", "__consumer_offsets", UUID(int=1), 3)
            for offset in (10, 20, 30):
                await here.store.put(origin.key(offset), b"a state")
            await collections(one, here.store).collect()
            assert await objects(here.store, "state/") == [origin.key(30)]

    run(story)


def test_verifiers_that_the_log_does_not_name_go_when_it_has_gone_on_for_the_grace() -> None:
    class LaterClock(SystemClock):
        """The store's clock, which the test moves forward."""

        later_ms = 0

        def time_ms(self) -> int:
            return super().time_ms() + self.later_ms

    async def story() -> None:
        clock = LaterClock()
        here = World(MemoryStore(clock), wal_linger_ms=0)
        async with here.broker(politely=False) as one:
            left = f"{CREDENTIALS_PREFIX}{'0' * 32}{CREDENTIALS_SUFFIX}"
            await here.store.put(left, b"what a dying process wrote")
            broker = one.broker
            log, epoch = broker.membership.metadata, broker.membership.incarnation.epoch
            added = Credentials().changed
            await change_credentials(
                log, here.store, clock, SeededEntropy(3), epoch, lambda _: added((), {})
            )
            named = log.state.credentials
            grace_seconds = 600.0
            here_collections = collections(one, here.store, grace_seconds=0.0)
            patient = here_collections.objects
            patient._grace_seconds = grace_seconds
            await here_collections.collect()
            assert await objects(here.store, CREDENTIALS_PREFIX) == sorted([left, str(named)])
            # The log has a later entry, so no process may name the object any more.
            clock.later_ms = int(grace_seconds * 1000) + 1000
            await one.create_topic("later")
            await here_collections.collect()
            assert await objects(here.store, CREDENTIALS_PREFIX) == [named]

    run(story)


def test_foreign_and_staged_objects_leases_and_the_metadata_log_stay() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            kept = ["staged/abc", "wal/notes.txt", "checkpoint/0-1/latest", "handover/young"]
            for key in kept:
                await here.store.put(key, b"something")
            before = await objects(here.store, "cluster/")
            await collections(one, here.store, grace_seconds=0.0).collect()
            found = await objects(here.store)
            assert set(kept) <= set(found)
            assert await objects(here.store, "cluster/") == before

    run(story)


def test_a_damaged_checkpoint_keeps_all() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await four_slots(one)
            roll(one, topic_id, 0, 4)
            await checkpoint(one)
            key = checkpoint_key(one.broker.membership.incarnation, Slot(4))
            await here.store.put(key, bytes((await here.store.get(key)).data)[:-1])
            before = await objects(here.store)
            with pytest.raises(CorruptObject) as caught:
                await collections(one, here.store).collect()
            assert caught.value.key == key
            assert await objects(here.store) == before

    run(story)


def test_a_lost_hand_over_image_keeps_all_and_is_named() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await four_slots(one)
            await checkpoint(one)
            lost = f"handover/{UUID(int=7)}"
            log, epoch = one.broker.membership.metadata, one.broker.membership.incarnation.epoch
            loss = LossAccepted(topic_id, 0, lost, (), ())
            await log.append(epoch, lambda _: (loss,))
            before = await objects(here.store)
            with pytest.raises(MissingObject) as caught:
                await collections(one, here.store).collect()
            assert caught.value.key == lost
            assert await objects(here.store) == before

    run(story)


def test_a_checkpoint_of_a_newer_version_keeps_all_and_the_broker_goes_on() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            topic_id = await four_slots(one)
            roll(one, topic_id, 0, 4)
            await checkpoint(one)
            key = checkpoint_key(one.broker.membership.incarnation, Slot(4))
            newer = bytearray((await here.store.get(key)).data)
            newer[len(CHECKPOINT_MAGIC)] = CHECKPOINT_FORMAT_VERSION + 1
            await here.store.put(key, newer)
            before = await objects(here.store)
            found = collections(one, here.store)
            found.objects._interval_seconds = 0.0
            collecting = asyncio.create_task(found.objects.run())
            for _ in range(1_000_000):
                if found.metrics.failures >= 2 or collecting.done():
                    break
                await asyncio.sleep(0)
            assert found.metrics.failures >= 2
            assert await objects(here.store) == before
            collecting.cancel()

    run(story)


def test_a_tenure_without_an_anchor_keeps_all() -> None:
    """The metadata log calls the tenure opened, but no checkpoint has its image. The image may
    refer to any object."""

    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as one:
            await one.create_topic(retention_ms="-1")
            await one.produce(batch(b"a"))
        async with here.broker(politely=False) as one:
            await until_opened(one)
            me = one.broker.membership.incarnation
            for slot in await list_checkpoints(here.store, me):
                await here.store.delete(checkpoint_key(me, slot))
            with pytest.raises(CorruptObject, match="no checkpoint has the tenure"):
                await collections(one, here.store).collect()

    run(story)
