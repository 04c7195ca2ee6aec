"""Producer ids: each is given out once, with any number of requests and any deaths."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.coordinator.cluster.world import World, entry_key, simulate
from tidelog.coordinator.cluster.log.producer_ids import (
    BLOCK_IDS,
    EMPTY_BLOCK,
    ProducerIdBlock,
    ProducerIds,
)
from tidelog.coordinator.cluster.records.records import (
    EntryRange,
    LogEndAccepted,
    MetadataEntry,
    ProducerIdsAllocated,
    encode_entry,
)
from tidelog.errors import Fenced
from tidelog.identifiers import ProducerId


def test_a_block_gives_out_each_of_its_ids() -> None:
    block = ProducerIdBlock(ProducerId(5), ProducerId(7))
    first, block = block.take()
    second, block = block.take()
    assert (first, second, block.is_empty) == (5, 6, True)
    with pytest.raises(ValueError, match="all ids of the block are used"):
        block.take()
    assert EMPTY_BLOCK.is_empty


@pytest.mark.parametrize("seed", range(5))
def test_brokers_never_give_out_the_same_id(seed: int) -> None:
    async def story(world: World) -> None:
        brokers = [await world.broker(n, world.process(f"p{n}")) for n in range(3)]
        world.store.settings.reply_lost_probability = 0.2
        sources = [ProducerIds(b.log, b.registered.incarnation) for b in brokers]
        ids = await asyncio.gather(*(s.next() for s in sources for _ in range(1500)))
        assert len(set(ids)) == 4500
        assert all(0 <= each < 6000 for each in ids)
        # The requests take two blocks from each broker, however many came at once.
        assert world.replayed().next_producer_id == 6 * BLOCK_IDS

    simulate(story, seed)


def test_a_restarted_broker_goes_on_behind_its_old_block() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a", host="harbour"))
        assert await ProducerIds(first.log, first.registered.incarnation).next() == 0
        first.process.kill()
        second = await world.broker(7, world.process("b", host="harbour"))
        assert await ProducerIds(second.log, second.registered.incarnation).next() == 1000
        dead = ProducerIds(second.log, first.registered.incarnation)
        with pytest.raises(Fenced):
            await dead.next()
        allocations = [
            record
            for entry in world.entries()
            for record in entry.records
            if isinstance(record, ProducerIdsAllocated)
        ]
        assert [(each.first, each.count) for each in allocations] == [(0, 1000), (1000, 1000)]

    simulate(story)


def test_ids_that_lost_entries_gave_out_are_not_given_out_again() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a", host="harbour"))
        assert await ProducerIds(first.log, first.registered.incarnation).next() == 0
        lost = first.log.state.sequence
        first.process.kill()
        world.remove(entry_key(lost))
        accepted = MetadataEntry(
            lost, b"w" * 16, 0, None, (LogEndAccepted(EntryRange(lost, lost)),), None
        )
        world.place(entry_key(lost), encode_entry(accepted))
        second = await world.broker(7, world.process("b", host="harbour"))
        ids = ProducerIds(second.log, second.registered.incarnation)
        # Partitions remember producer 0: they would take a new one's batches for duplicates.
        given = [await ids.next() for _ in range(BLOCK_IDS + 1)]
        assert min(given) >= BLOCK_IDS
        assert len(set(given)) == len(given)
        # Each entry gives out one block at most. Only the first block leaves out ids.
        allocations = [
            record
            for entry in world.entries()
            for record in entry.records
            if isinstance(record, ProducerIdsAllocated)
        ]
        end = (lost + 1) * BLOCK_IDS
        assert [(each.first, each.count) for each in allocations] == [
            (0, end + BLOCK_IDS),
            (end + BLOCK_IDS, BLOCK_IDS),
        ]
        assert world.replayed().next_producer_id == end + 2 * BLOCK_IDS

    simulate(story)
