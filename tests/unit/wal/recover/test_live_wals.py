"""Reading a WAL that is being written (G2)."""

from __future__ import annotations

import pytest

from tests.properties.wal.batches import batch, header, incarnation, stamps, topic_partition
from tests.properties.wal.worlds import World
from tests.unit.wal.recover.lives import ends_at, life, slot_key, story, three_lives_in_one
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.storage.object_store import Buffer
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.slot_entries import BatchEntry

P = [topic_partition(number) for number in range(4)]
FIRST, SECOND, THIRD = incarnation(1), incarnation(2), incarnation(3)


def test_a_live_wal_ends_at_its_first_missing_slot() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.ends.clear()
        recovered = await world.recover()
        assert ends_at(recovered) == [3, 2, 0, 0]
        assert recovered.ends == {FIRST: 5}
        # Slot 6 has overtaken slot 5, which is still on its way.
        await world.bucket.put(slot_key(6), overtaking(6, durable_end=5))
        recovered = await world.recover()
        assert ends_at(recovered) == [3, 2, 0, 0]
        assert recovered.ends == {FIRST: 5}

    story(tell)


def overtaking(slot: int, durable_end: int) -> Buffer:
    """A slot that was laid out before all earlier slots were durable."""
    buffer = SlotBuffer()
    data, head = batch()
    buffer.add(BatchEntry(P[0], LeaderEpoch(0), data, head, 3))
    stamped = header(slot)._replace(stamps=stamps(durable_end))
    return buffer.assemble(stamped, {(P[0], LeaderEpoch(0)): 4}).data


@pytest.mark.parametrize("told", [False, True])
def test_a_slot_that_was_confirmed_is_never_the_end_of_a_live_wal(told: bool) -> None:
    """Later slots prove that the slot was confirmed, or the lease does if there are none."""

    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.ends.clear()
        lost = (4,) if told else (2,)
        for slot in lost:
            await world.bucket.delete(slot_key(slot))
        known = {FIRST: Slot(5)} if told else {}
        recovered = await world.recover(told=known)
        assert ends_at(recovered) == ([None] * 4 if told else [3, None, 0, 0])
        assert {failure.key for failure in recovered.failures.values()} == {slot_key(lost[0])}
        assert recovered.ends == {FIRST: 5}

    story(tell)


def test_several_slots_that_were_confirmed_and_are_lost() -> None:
    """A partition is served only if it is proved to have no entry in the lost slots."""

    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.ends.clear()
        for slot in (2, 3):
            await world.bucket.delete(slot_key(slot))
        recovered = await world.recover()
        assert ends_at(recovered) == [3, None, None, None]

    story(tell)


def test_slots_of_the_first_release_prove_nothing() -> None:
    async def tell(world: World) -> None:
        buffer = SlotBuffer()
        data, head = batch()
        buffer.add(BatchEntry(P[0], LeaderEpoch(0), data, head, 3))
        await world.bucket.put(slot_key(1), buffer.assemble(header(1)).data)
        recovered = await world.recover()
        assert ends_at(recovered) == [0, 0, 0, 0]

    story(tell)


def test_reading_a_live_wal_changes_nothing() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0])
            world.ends.clear()
            await world.recover()
            await broker.produce(P[0])
            assert ends_at(await world.recover())[0] == 2

    story(tell)
