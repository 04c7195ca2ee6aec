"""fsck and the collectors meet objects that the metadata log does not know yet or no longer (rule
C11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from tests.unit.broker.collections import collections, objects
from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.bucket.bucket_world import roll_and_checkpoint, world
from tests.unit.bucket.fsck.checked_bucket import checked
from tidelog.broker.collect.forgetting import Forgetting
from tidelog.broker.collect.marks import Marks
from tidelog.bucket.fsck.faults import FaultKind
from tidelog.coordinator.cluster.records.records import EntryRange, LogEndAccepted, TopicCreated
from tidelog.coordinator.cluster.records.topics import TopicFate, new_topic_id
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot, TopicId
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.segment.segment import table_prefix
from tidelog.wal.format.object_format import merged_key, wal_key
from tidelog.wal.write.checkpoint import checkpoint_key

Story = Callable[[World], Awaitable[None]]


async def numbered(one: OneBroker, name: str) -> TopicId:
    """A topic whose id contains its entry's number, as handlers create it."""
    ids: list[TopicId] = []
    epoch = one.broker.membership.incarnation.epoch

    def build(state) -> tuple[TopicCreated]:  # type: ignore[no-untyped-def]
        ids.append(new_topic_id(state.sequence + 1, one.broker.environment.entropy.uuid()))
        return (TopicCreated(ids[-1], name, (epoch,)),)

    await one.broker.membership.metadata.append(epoch, build)
    return ids[-1]


async def forget(one: OneBroker) -> None:
    """Let the metadata log forget all ids that it may forget."""
    broker = one.broker
    each = Forgetting(
        broker.environment.store,
        broker.environment.clock,
        broker.membership.metadata,
        broker.membership.incarnation,
        1.0,
        Marks(0.0),
    )
    for _ in range(2):
        await each.look()


async def rolled_topic(one: OneBroker, name: str) -> TopicId:
    """A topic with a segment and a table log."""
    topic_id = await numbered(one, name)
    await one.produce(batch(b"a"), topic=name)
    await roll_and_checkpoint(one.broker.environment.store, one, name)
    return topic_id


async def topic_objects(store: ObjectStore, topic_id: TopicId) -> dict[str, bytes]:
    keys = await objects(store, table_prefix(topic_id))
    return {key: bytes((await store.get(key)).data) for key in keys}


async def put_all(store: ObjectStore, found: dict[str, bytes]) -> None:
    for key, data in found.items():
        await store.put(key, data)


async def forgotten_topic(one: OneBroker) -> tuple[TopicId, dict[str, bytes]]:
    """A topic that was deleted, collected and forgotten, and its former objects."""
    topic_id = await rolled_topic(one, "doomed")
    found = await topic_objects(one.broker.environment.store, topic_id)
    assert len(found) == 2
    await one.delete_topic(topic_id)
    await collections(one, one.broker.environment.store).collect_tables()
    await forget(one)
    assert one.broker.membership.metadata.state.fate_of(topic_id) is TopicFate.FORGOTTEN
    return topic_id, found


def test_late_objects_of_a_forgotten_topic_are_counted_and_kept() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id, late = await forgotten_topic(one)
            assert (await checked(here.store)).counts["objects of forgotten topics"] == 0
            await put_all(here.store, late)
            await collections(one, here.store).collect_tables()
            assert await topic_objects(here.store, topic_id) == late
            await forget(one)
        found = await checked(here.store)
        assert found.faults == []
        assert found.counts["objects of forgotten topics"] == 2
        assert found.counts["bytes of forgotten topics"] == sum(map(len, late.values()))

    run(story)


def test_remains_of_a_deleted_topic_are_counted_and_collected() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await rolled_topic(one, "doomed")
            await one.delete_topic(topic_id)
            await forget(one)
            found = await checked(here.store)
            assert found.faults == []
            assert found.counts["objects of deleted topics"] == 2
            await collections(one, here.store).collect_tables()
            assert await topic_objects(here.store, topic_id) == {}

    run(story)


def test_data_of_a_topic_that_the_log_does_not_know_is_a_fault_and_kept() -> None:
    """The log's last entry created the topic, and is lost together with every stamp."""
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await rolled_topic(one, "known")
            behind_the_end = new_topic_id(
                one.broker.membership.metadata.state.sequence + 100, UUID(int=1)
            )
            of_another_release = UUID(int=5)
            for topic_id in (behind_the_end, of_another_release):
                keys = [f"{table_prefix(topic_id)}_delta_log/{0:020d}.json"]
                await put_all(here.store, dict.fromkeys(keys, b"{}"))
            await collections(one, here.store).collect_tables()
            await forget(one)
        found = await checked(here.store)
        assert found.counts["objects of unknown topics"] == 2
        faults = {fault.key: fault for fault in found.faults}
        assert {fault.kind for fault in found.faults} == {FaultKind.CONTRADICTION}
        assert len(faults) == 2
        assert await objects(here.store, table_prefix(behind_the_end))
        assert await objects(here.store, table_prefix(of_another_release))

    run(story)


def test_a_topic_whose_entry_was_taken_by_another_is_unknown_and_not_forgotten() -> None:
    """The log lost its end unnoticed, and went on. An entry of that number exists, but creates
    something else."""
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            known = await rolled_topic(one, "known")
            data = await topic_objects(here.store, known)
            (sequence,) = [known.int >> 80]
            lost = new_topic_id(sequence, UUID(int=1))
            keys = {key.replace(str(known), str(lost)): body for key, body in data.items()}
            await put_all(here.store, keys)
            assert one.broker.membership.metadata.state.fate_of(lost) is TopicFate.FORGOTTEN
            await collections(one, here.store).collect_tables()
        found = await checked(here.store)
        (fault,) = found.faults
        assert fault.kind is FaultKind.CONTRADICTION
        assert fault.key in keys
        assert f"cluster/log/{sequence:020d}.json creates no topic {lost}" in fault.why
        assert await topic_objects(here.store, lost) == keys

    run(story)


def test_a_topic_that_was_given_up_with_the_logs_end_is_no_fault() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            metadata = one.broker.membership.metadata
            epoch = one.broker.membership.incarnation.epoch
            at = await metadata.append(
                epoch,
                lambda state: (LogEndAccepted(EntryRange(state.sequence + 1, state.sequence + 1)),),
            )
            lost = new_topic_id(at, UUID(int=1))
            await here.store.put(f"{table_prefix(lost)}_delta_log/{0:020d}.json", b"{}")
        found = await checked(here.store)
        assert found.faults == []
        assert found.counts["objects of forgotten topics"] == 1

    run(story)


async def forgotten_incarnation(here: World) -> Incarnation:
    """An incarnation that the metadata log has forgotten."""
    async with here.broker(politely=False) as one:
        await numbered(one, "flights")
        dead = one.broker.membership.incarnation
    async with here.broker() as one:
        await one.produce(batch(b"a"))
        await roll_and_checkpoint(here.store, one)
        await one.broker.writes.tenure_reports.flush()
        await collections(one, here.store).collect()
        await forget(one)
        assert one.broker.membership.metadata.state.retired == {}
    return dead


def test_the_seal_of_a_forgotten_incarnation_stays_and_is_counted() -> None:
    here = world()

    async def story() -> None:
        dead = await forgotten_incarnation(here)
        async with here.broker() as one:
            await collections(one, here.store).collect()
        assert await objects(here.store, f"wal/{dead}/") == [wal_key(dead, Slot(0))]
        found = await checked(here.store)
        assert found.faults == []
        assert found.counts["seals of forgotten incarnations"] >= 1
        assert found.counts["objects of forgotten incarnations"] == 0

    run(story)


def test_late_objects_of_a_forgotten_incarnation_are_counted_and_kept() -> None:
    """The incarnation's process was stopped for longer than the grace, within a request."""
    here = world()

    async def story() -> None:
        dead = await forgotten_incarnation(here)
        late = [wal_key(dead, Slot(5)), merged_key(dead, 3), checkpoint_key(dead, Slot(5))]
        async with here.broker() as one:
            await one.produce(batch(b"b"))
            slots = await objects(here.store, "wal/")
            data = max([bytes((await here.store.get(key)).data) for key in slots], key=len)
            for key in late[:1] + late[2:]:
                await here.store.put(key, data)
            collecting = collections(one, here.store)
            await collecting.collect()
            await collecting.collect_tables()
            await forget(one)
        keys = await objects(here.store)
        assert {late[0], late[2]} <= set(keys)
        found = await checked(here.store)
        assert found.faults == []
        assert found.counts["objects of forgotten incarnations"] == 2

    run(story)


@pytest.mark.parametrize("kind", ["slot", "merged", "checkpoint"])
def test_objects_of_an_incarnation_behind_the_logs_end_are_faults_and_kept(kind: str) -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await numbered(one, "flights")
            unknown = Incarnation(
                BrokerId(0), Epoch(one.broker.membership.metadata.state.sequence + 50)
            )
            key = {
                "slot": wal_key(unknown, Slot(0)),
                "merged": merged_key(unknown, 0),
                "checkpoint": checkpoint_key(unknown, Slot(0)),
            }[kind]
            await here.store.put(key, b"of a lost registration")
            await collections(one, here.store).collect()
            await forget(one)
            assert key in await objects(here.store)
            found = await checked(here.store)
        assert FaultKind.CONTRADICTION in {f.kind for f in found.faults if f.key == key}

    run(story)
