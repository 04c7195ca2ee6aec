"""Damaged objects of a table log are named; a store that fails leaves the log usable."""

from __future__ import annotations

import pytest

from tests.unit.storage.segments import TOPIC_ID
from tests.unit.storage.table.table_log_world import Refusing, World, contents, grow, tell
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import StoreNotApplied
from tidelog.storage.stores.faulty import FaultRates
from tidelog.storage.table.table_log import TableLog


async def lose(world: World, log: TableLog, key: str, message: str) -> None:
    kept = bytes((await world.truth.get(key)).data)
    await world.truth.delete(key)
    with pytest.raises(CorruptObject, match=message) as raised:
        await world.open()
    assert raised.value.key == key
    middle = len(kept) // 2
    altered = kept[:middle] + bytes([kept[middle] ^ 1]) + kept[middle + 1 :]
    for damaged in (kept[:middle], b"", altered):
        await world.truth.put(key, damaged)
        with pytest.raises(CorruptObject) as raised:
            await world.open()
        assert raised.value.key == key
    await world.truth.put(key, kept)
    assert contents((await world.open()).state) == contents(log.state)


def test_a_missing_or_damaged_version_or_checkpoint_is_named() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 4)
        await lose(world, log, log.key(1), "later ones are there")
        await lose(world, log, log.key(0), "later ones are there")
        await log.write_checkpoint()
        await grow(log, 2)
        await lose(world, log, log.checkpoint_key(3), "later ones are there")
        await lose(world, log, log.key(4), "later ones are there")

    tell(story)


def test_no_altered_byte_of_a_checkpoint_goes_unseen() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 4)
        key = log.checkpoint_key(await log.write_checkpoint())
        kept = bytes((await world.truth.get(key)).data)
        unseen = 0
        for position in range(0, len(kept), 7):
            altered = bytearray(kept)
            altered[position] ^= 16
            await world.truth.put(key, altered)
            try:
                assert contents((await world.open()).state) == contents(log.state)
                unseen += 1
            except CorruptObject as error:
                assert error.key == key  # noqa: PT017
        # Undetected are the file's first magic, and the seal's own: without it the checkpoint looks
        # like another writer's.
        assert unseen <= 3

    tell(story)


def test_a_hint_that_does_not_decode_is_named() -> None:
    async def story(world: World) -> None:
        log = await world.open()
        await grow(log, 2)
        key = f"topics/{TOPIC_ID}/_delta_log/_last_checkpoint"
        versions = (b"1e999", b"1e300", b"9" * 300, b"-1")
        for wrong in (
            b"",
            b"[]",
            b'{"size": 1}',
            *(b'{"version": %s}' % each for each in versions),
        ):
            await world.truth.put(key, wrong)
            with pytest.raises(CorruptObject, match="_last_checkpoint"):
                await world.open()

    tell(story)


def test_a_store_that_fails_leaves_the_log_usable() -> None:
    async def story(world: World) -> None:
        store = Refusing(world.truth, world.clock, world.entropy, FaultRates())
        log = await world.open(store)
        await grow(log, 2)
        other = await world.open()
        await grow(other, 60)
        await other.write_checkpoint()
        store.mute = True
        with pytest.raises(StoreNotApplied):
            await log.refresh()
        assert log.state.version == 1
        store.mute = False
        assert await log.refresh() == 61
        await store.close()

    tell(story)


@pytest.mark.parametrize(("grace_seconds", "given_up_after"), [(600.0, 30), (8.0, 2)])
def test_a_commit_gives_up_before_its_view_is_too_old(
    grace_seconds: float, given_up_after: float
) -> None:
    """A view may be as old as half the grace, if that is short."""

    async def story(world: World) -> None:
        store = world.faulty(FaultRates(refused=1.0))
        log = await world.open(grace_seconds=grace_seconds)
        log._sequence._store = store
        started = world.clock.monotonic()
        with pytest.raises(StoreNotApplied):
            await grow(log, 1)
        assert world.clock.monotonic() - started == pytest.approx(given_up_after, abs=0.01)

    tell(story)
