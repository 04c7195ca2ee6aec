"""A prefix becomes a cluster once. Prefixes that hold no cluster, a newer format or damage are
refused, and the error names the object."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.coordinator.cluster.samples import CLUSTER, NOWHERE, WRITER, registered
from tests.unit.coordinator.cluster.world import World, entry_key, simulate
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.bucket_format import new_cluster
from tidelog.coordinator.cluster.records.records import (
    LeaseResumed,
    MetadataEntry,
    TopicDeleted,
    encode_entry,
)
from tidelog.errors import CorruptObject, ForeignObjects, InvalidConfiguration, UnsupportedFormat
from tidelog.identifiers import Epoch


def test_an_empty_prefix_becomes_a_cluster() -> None:
    async def story(world: World) -> None:
        world.place("probe/left-over", b"x")
        log = await world.log(world.process("a"))
        assert log.state.sequence == 0
        assert world.keys() == [entry_key(0), "probe/left-over"]
        again = await world.log(world.process("b"), create=False)
        assert again.state == log.state
        assert len(log.state.cluster_id) == 22

    simulate(story)


def test_nothing_is_created_without_a_request() -> None:
    async def story(world: World) -> None:
        with pytest.raises(InvalidConfiguration, match="memory://simulation holds no cluster"):
            await world.log(world.process("a"), create=False)
        assert world.keys() == []

    simulate(story)


@pytest.mark.parametrize("seed", range(10))
def test_one_of_several_processes_creates_the_cluster(seed: int) -> None:
    async def story(world: World) -> None:
        logs = await asyncio.gather(*(world.log(world.process(f"p{n}")) for n in range(5)))
        assert len({log.state.cluster_id for log in logs}) == 1
        assert [entry.records for entry in world.entries()] == [(logs[0].state.cluster,)]

    simulate(story, seed, reply_lost_probability=0.1, request_lost_probability=0.1)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("photos/cat.jpg", "holds photos/cat.jpg, which is not Tidelog's"),
        ("cluster", "holds cluster, which is not Tidelog's"),
        ("cluster/lease/1.json", "holds cluster/lease/1.json, but no metadata log"),
        ("cluster/log/notes.txt", "holds cluster/log/notes.txt, but no metadata log"),
        ("wal/1-1/00000000000000000000.wal", "holds wal/1-1/.*, but no metadata log"),
        ("topics/x/_delta_log/0.json", "but no metadata log"),
    ],
)
def test_a_prefix_with_other_objects_is_refused_and_left_alone(key: str, why: str) -> None:
    async def story(world: World) -> None:
        world.place(key, b"x")
        world.place("probe/left-over", b"x")
        with pytest.raises(ForeignObjects, match=why):
            await world.log(world.process("a"))
        assert sorted(world.keys()) == sorted([key, "probe/left-over"])

    simulate(story)


def test_a_bucket_that_asks_for_newer_readers_is_refused_with_both_versions() -> None:
    async def story(world: World) -> None:
        newer = replace(CLUSTER, format_version=4, minimum_reader_version=3)
        world.place(entry_key(0), encode_entry(MetadataEntry(0, WRITER, 0, None, (newer,))))
        with pytest.raises(UnsupportedFormat, match=r"reader of version 3; .* reader version 2"):
            await world.log(world.process("a"))

    simulate(story)


def test_a_bucket_that_asks_for_newer_writers_may_be_read() -> None:
    async def story(world: World) -> None:
        newer = replace(CLUSTER, format_version=4, minimum_writer_version=4)
        world.place(entry_key(0), encode_entry(MetadataEntry(0, WRITER, 0, None, (newer,))))
        process = world.process("a")
        with pytest.raises(UnsupportedFormat, match=r"writer of version 4; .* writer version 2"):
            await world.log(process)
        log = await MetadataLog.open(
            world.store.of(process), process.clock, process.entropy, writing=False
        )
        assert log.state.cluster == newer
        with pytest.raises(RuntimeError, match="opened for reading"):
            await log.append(None, lambda _: (registered(1),))

    simulate(story)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_entry_is_named_and_does_not_pass_for_the_end(missing: int) -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        await broker.create("one")
        await broker.create("two")
        world.remove(entry_key(missing))
        with pytest.raises(CorruptObject, match="it is missing, although") as caught:
            await world.log(world.process("b"))
        assert caught.value.key == entry_key(missing)

    simulate(story)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "checksum"),
        (encode_entry(MetadataEntry(9, WRITER, 0, None, ())), "it says that it is entry 9"),
        (
            encode_entry(MetadataEntry(2, WRITER, 0, Epoch(1), (TopicDeleted(NOWHERE),))),
            "cannot follow the entries before it: .* no topic",
        ),
        (
            encode_entry(MetadataEntry(2, WRITER, 0, Epoch(8), (LeaseResumed(Epoch(8)),))),
            "cannot follow the entries before it: .* epoch 8, is not registered",
        ),
    ],
)
def test_a_corrupt_entry_is_named_and_nothing_behind_it_is_read(data: bytes, why: str) -> None:
    async def story(world: World) -> None:
        broker = await world.broker(1, world.process("a"))
        world.place(entry_key(2), data)
        with pytest.raises(CorruptObject, match=why) as caught:
            await world.log(world.process("b"))
        assert caught.value.key == entry_key(2)
        # A broker that runs already stops at the same object, and stays stopped.
        with pytest.raises(CorruptObject, match=why):
            await broker.log.refresh()
        world.place(entry_key(2), b"mended")
        with pytest.raises(CorruptObject, match=why):
            await broker.create("x")
        assert broker.log.state.sequence == 1

    simulate(story)


def test_a_first_entry_that_creates_nothing_is_corrupt() -> None:
    async def story(world: World) -> None:
        world.place(entry_key(0), encode_entry(MetadataEntry(0, WRITER, 0, None, ())))
        with pytest.raises(CorruptObject, match="does not create a cluster"):
            await world.log(world.process("a"))

    simulate(story)


def test_new_cluster_ids_are_never_taken_for_options() -> None:
    class Drawn:
        def __init__(self) -> None:
            self.draws = [UUID(bytes=b"\xf8" * 16), UUID(int=5), UUID(int=9)]

        def uuid(self) -> UUID:
            return self.draws.pop(0)

        def uniform(self, low: float, high: float) -> float:
            return low

    assert new_cluster(UUID(bytes=b"\xf8" * 16)).cluster_id.startswith("-")

    async def story(world: World) -> None:
        process = world.process("a")
        entropy = Drawn()
        log = await MetadataLog.open(world.store.of(process), process.clock, entropy, create=True)
        assert log.state.cluster_id == new_cluster(UUID(int=5)).cluster_id

    simulate(story)
