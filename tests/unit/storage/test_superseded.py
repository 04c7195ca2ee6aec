"""Rule F4: if a newer object exists, a reader that misses one goes on there. Otherwise its error
names the lost object."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.clock import SystemClock
from tidelog.errors import MissingObject
from tidelog.storage.object_store import ObjectNotFound, StoreNotApplied
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.superseded import Looks, Superseded, required, retry_if_superseded


class Snapshots:
    """A prefix whose newest object is read. The objects of `deleted` are deleted between the
    listing and the read."""

    def __init__(self, *deleted: int) -> None:
        self.store = MemoryStore(SystemClock())
        self.deleted = list(deleted)
        self.reads = 0

    async def read(self) -> bytes:
        self.reads += 1
        key = [meta.key async for meta in self.store.list("snapshot/")][-1]
        if self.deleted:
            number = self.deleted.pop(0)
            await self.store.delete(f"snapshot/{number}")
            await self.store.put(f"snapshot/{number + 1}", b"newer")
        with required():
            return bytes((await self.store.get(key)).data)


async def put(snapshots: Snapshots, number: int) -> None:
    await snapshots.store.put(f"snapshot/{number}", b"old")


def test_an_object_that_a_newer_one_has_replaced_is_looked_for_again() -> None:
    async def story() -> None:
        snapshots = Snapshots(1, 2)
        await put(snapshots, 1)
        assert await retry_if_superseded(snapshots.read) == b"newer"
        assert snapshots.reads == 3

    asyncio.run(story())


def test_the_same_object_missing_twice_is_lost() -> None:
    async def read() -> bytes:
        with required():
            raise ObjectNotFound("snapshot/1", "no such object")

    with pytest.raises(MissingObject, match="snapshot/1 is corrupt: it is missing") as caught:
        asyncio.run(retry_if_superseded(read))
    assert isinstance(caught.value.__cause__, ObjectNotFound)


def test_an_object_that_a_look_at_the_reference_found_superseded_may_be_missing_again() -> None:
    reads: list[str] = []

    async def read() -> str:
        reads.append("look")
        if len(reads) < 4:
            raise Superseded("snapshot/1", "no reference names it")
        return "newer"

    assert asyncio.run(retry_if_superseded(read)) == "newer"
    reads.clear()
    with pytest.raises(StoreNotApplied, match="snapshot/1"):
        asyncio.run(retry_if_superseded(read, looks_max=3))
    assert len(reads) == 3


def test_objects_that_take_turns_at_missing_are_not_lost() -> None:
    looks = Looks("bucket", looks_max=4)
    for key in ("snapshot/1", "snapshot/2", "snapshot/1"):
        looks.missed(MissingObject(key, "it is missing"))
    with pytest.raises(StoreNotApplied, match="bucket"):
        looks.changed()


def test_references_that_never_settle_are_given_up_as_a_passing_fault() -> None:
    async def story() -> None:
        snapshots = Snapshots(*range(1, 6))
        await put(snapshots, 1)
        with pytest.raises(StoreNotApplied, match="faster than it can be read"):
            await retry_if_superseded(snapshots.read, looks_max=3)
        assert snapshots.reads == 3

    asyncio.run(story())


def test_other_errors_of_the_store_pass_through() -> None:
    async def read() -> None:
        with required():
            raise StoreNotApplied("snapshot/1", "the store is away")

    with pytest.raises(StoreNotApplied, match="the store is away"):
        asyncio.run(retry_if_superseded(read))
