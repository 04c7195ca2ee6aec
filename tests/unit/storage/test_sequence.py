"""Sequences: which process appended which entry, when requests and answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ByteRange,
    ObjectNotFound,
    StoredObject,
    StoreError,
    StoreFull,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.sequence import (
    AppendUndecided,
    Mine,
    Sequence,
    SequenceGone,
    Taken,
)
from tidelog.storage.stores.faulty import FaultRates, FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import RetryingStore

OURS, THEIRS = b"o" * 16, b"t" * 16
OUR_BODY, THEIR_BODY = OURS + b" our entry", THEIRS + b" their entry"
DEADLINE = 20.0


def identify(data: Buffer) -> bytes:
    if len(data) < 16:
        raise CorruptObject("log/...", "too short to hold a writer id")
    return bytes(data[:16])


class World:
    """A store that fails on demand, the same store without faults, and a writer's sequence."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.truth = MemoryStore(self.clock)
        self.store = FaultyStore(self.truth, self.clock, SeededEntropy(loop.time()))
        self.log = Sequence(self.store, self.clock, "log/", ".json", identify)

    async def append(self, number: int = 0, body: bytes = OUR_BODY) -> Mine | Taken:
        return await self.log.append(number, body, body[:16], DEADLINE)

    async def they_append(self, number: int = 0) -> None:
        await self.truth.put(self.log.key(number), THEIR_BODY)

    async def holds(self, number: int = 0) -> bytes | None:
        try:
            return bytes((await self.truth.get(self.log.key(number))).data)
        except ObjectNotFound:
            return None


def tell(story: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    """Run a story in virtual time. No task of it may be left over or fail unseen."""

    async def main(loop: SimulatedLoop) -> None:
        world = World(loop)
        await story(world)
        await world.store.close()

    with SimulatedLoop(seed) as loop:
        loop.run(main(loop), seconds_max=3600)
        assert loop.unhandled == []


def test_keys_are_in_number_order() -> None:
    async def story(world: World) -> None:
        assert world.log.key(7) == "log/00000000000000000007.json"
        assert world.log.number(world.log.key(7)) == 7
        for foreign in ("log/7.json", "log/00000000000000000007.wal", "x", "log/-000000000000007"):
            assert world.log.number(foreign) is None
        with pytest.raises(ValueError, match="negative"):
            world.log.key(-1)

    tell(story)


def test_a_free_number_becomes_ours_and_a_taken_number_shows_its_owner() -> None:
    async def story(world: World) -> None:
        await world.they_append(1)
        mine = await world.append(0)
        assert isinstance(mine, Mine)
        assert (await world.log.read(0)).etag == mine.etag
        assert await world.append(1) == Taken(THEIR_BODY)
        assert await world.holds(1) == THEIR_BODY

    tell(story)


def test_pieces_are_appended_joined() -> None:
    async def story(world: World) -> None:
        world.store.plan("put", StoreFault.ANSWER_LOST)
        pieces = [OURS, b" our", b" entry"]
        assert isinstance(await world.log.append(0, pieces, OURS, DEADLINE), Mine)
        assert await world.holds(0) == OUR_BODY

    tell(story)


@pytest.mark.parametrize(
    "faults",
    [
        [StoreFault.REFUSED],
        [StoreFault.REQUEST_LOST],
        [StoreFault.ANSWER_LOST],
        [StoreFault.LATE],
        [StoreFault.SLOW],
        [StoreFault.REFUSED, StoreFault.REFUSED, StoreFault.ANSWER_LOST],
        [StoreFault.REQUEST_LOST, StoreFault.REQUEST_LOST, StoreFault.LATE],
        [StoreFault.LATE, StoreFault.LATE, StoreFault.ANSWER_LOST],
    ],
    ids=lambda faults: " ".join(fault.name for fault in faults),
)
def test_an_append_that_goes_wrong_is_ours_once_it_is_there(faults: list[StoreFault]) -> None:
    async def story(world: World) -> None:
        world.store.rates = FaultRates(late_seconds_max=5.0)
        world.store.plan("put", *faults)
        world.store.plan("get", StoreFault.REFUSED)
        mine = await world.append()
        assert isinstance(mine, Mine)
        assert await world.holds() == OUR_BODY
        assert (await world.truth.get(world.log.key(0))).etag == mine.etag

    tell(story)


@pytest.mark.parametrize(
    "fault", [StoreFault.REFUSED, StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST]
)
def test_a_failed_append_is_lost_to_the_entry_that_was_there_before(fault: StoreFault) -> None:
    async def story(world: World) -> None:
        await world.they_append()
        world.store.plan("put", fault, fault)
        assert await world.append() == Taken(THEIR_BODY)

    tell(story)


def test_a_lost_request_may_be_overtaken() -> None:
    async def story(world: World) -> None:
        world.store.plan("put", StoreFault.REQUEST_LOST)
        append = asyncio.create_task(world.append())
        await world.clock.sleep(0.01)
        await world.they_append()
        assert await append == Taken(THEIR_BODY)

    tell(story)


def test_never_reached_means_not_appended() -> None:
    async def story(world: World) -> None:
        world.store.plan("put", *[StoreFault.REFUSED] * 100)
        with pytest.raises(StoreNotApplied, match="was not appended"):
            await world.append()
        assert await world.holds() is None

    tell(story)


def test_unreadable_until_the_deadline_is_undecided_either_way() -> None:
    async def story(world: World) -> None:
        for number, fault in enumerate((StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST)):
            began = world.clock.monotonic()
            world.store.plan("put", fault)
            world.store.plan("get", *[StoreFault.REFUSED] * 100, key=world.log.key(number))
            with pytest.raises(AppendUndecided, match="may or may not be ours"):
                await world.append(number)
            assert world.clock.monotonic() - began == pytest.approx(DEADLINE, abs=0.1)
        assert [await world.holds(0), await world.holds(1)] == [OUR_BODY, None]

    tell(story)


def test_one_lost_request_makes_later_refusals_undecided_too() -> None:
    """The lost request may still arrive: a store that refuses all later ones proves nothing."""

    async def story(world: World) -> None:
        world.store.plan("put", StoreFault.LATE, *[StoreFault.REFUSED] * 100)
        world.store.rates = FaultRates(late_seconds_max=600.0)
        with pytest.raises(AppendUndecided):
            await world.append()
        await world.store.settled()
        assert await world.holds() == OUR_BODY

    tell(story)


def test_a_store_that_hangs_is_undecided_at_the_deadline() -> None:
    async def story(world: World) -> None:
        world.store.pause()
        began = world.clock.monotonic()
        with pytest.raises(AppendUndecided, match="no answer within 20 s"):
            await world.append()
        assert world.clock.monotonic() - began == pytest.approx(DEADLINE, abs=0.1)
        world.store.resume()
        await world.store.settled()
        assert await world.holds() == OUR_BODY, "the sent put arrives after the deadline"

    tell(story)


def test_the_stores_last_error_is_raised_at_the_deadline() -> None:
    class Full(MemoryStore):
        async def put(self, key: str, *_: object) -> str:  # type: ignore[override]
            raise StoreFull(key, "the disk is full")

    async def story(world: World) -> None:
        full = RetryingStore(Full(world.clock), world.clock, SeededEntropy(1))
        log = Sequence(full, world.clock, "log/", "", identify)
        with pytest.raises(StoreError, match="the disk is full; it was tried for 20 s") as caught:
            await log.append(0, OUR_BODY, OURS, DEADLINE)
        assert "no answer" not in str(caught.value)

    tell(story)


def test_permission_that_ends_midway_leaves_it_undecided() -> None:
    class Revoked(MemoryStore):
        async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> object:  # type: ignore[override]
            raise AccessDenied(key, "revoked")

    async def story(world: World) -> None:
        store = FaultyStore(Revoked(world.clock), world.clock, SeededEntropy(1))
        log = Sequence(store, world.clock, "log/", "", identify)
        store.plan("put", StoreFault.ANSWER_LOST)
        with pytest.raises(AppendUndecided, match="revoked"):
            await log.append(0, OUR_BODY, OURS, DEADLINE)
        with pytest.raises(AppendUndecided):
            await log.append(0, OUR_BODY, OURS, DEADLINE)

    tell(story)


def test_no_permission_from_the_start_is_said_as_it_is() -> None:
    class ReadOnly(MemoryStore):
        async def put(self, key: str, *args: object) -> str:  # type: ignore[override]
            raise AccessDenied(key, "read-only")

    async def story(world: World) -> None:
        log = Sequence(ReadOnly(world.clock), world.clock, "log/", "", identify)
        with pytest.raises(AccessDenied, match="read-only"):
            await log.append(0, OUR_BODY, OURS, DEADLINE)

    tell(story)


def test_a_number_that_was_taken_and_deleted_is_neither_ours_nor_free() -> None:
    async def story(world: World) -> None:
        world.store.plan("put", StoreFault.GONE)
        with pytest.raises(SequenceGone, match="deleted"):
            await world.append()
        world.store.plan("put", StoreFault.REQUEST_LOST, StoreFault.GONE)
        with pytest.raises(SequenceGone):
            await world.append()
        assert await world.holds() is None

    tell(story)


def test_an_entry_that_does_not_decode_is_named() -> None:
    async def story(world: World) -> None:
        await world.truth.put(world.log.key(0), b"junk")
        with pytest.raises(CorruptObject, match="too short"):
            await world.append()

    tell(story)


def test_our_id_over_other_bytes_is_not_taken_for_ours() -> None:
    async def story(world: World) -> None:
        await world.truth.put(world.log.key(0), OURS + b" something else")
        with pytest.raises(CorruptObject, match="other bytes"):
            await world.append()

    tell(story)


def test_many_numbers_are_appended_at_once() -> None:
    async def story(world: World) -> None:
        world.store.rates = FaultRates(
            refused=0.2, request_lost=0.2, answer_lost=0.2, slow=0.2, late_seconds_max=1.0
        )
        bodies = [OURS + b"%d" % number for number in range(64)]
        outcomes = await asyncio.gather(
            *(world.append(number, body) for number, body in enumerate(bodies))
        )
        assert all(isinstance(outcome, Mine) for outcome in outcomes)
        world.store.rates = FaultRates()
        assert [bytes(entry.data) async for entry in world.log.iterate(0)] == bodies

    tell(story)


def test_a_writer_id_has_its_length() -> None:
    async def story(world: World) -> None:
        with pytest.raises(ValueError, match="16 bytes"):
            await world.log.append(0, b"x", b"short", DEADLINE)

    tell(story)


@pytest.mark.parametrize("read_ahead", [1, 3, 64])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 40])
def test_iteration_ends_at_the_first_hole(read_ahead: int, length: int) -> None:
    async def story(world: World) -> None:
        for number in range(length):
            await world.append(number)
        await world.they_append(length + 1)
        found = [entry.number async for entry in world.log.iterate(0, read_ahead)]
        assert found == list(range(length))
        assert [entry.number async for entry in world.log.iterate(5, read_ahead)] == found[5:]

    tell(story)


def test_iteration_reads_no_further_ahead_than_it_is_told() -> None:
    class Watched(MemoryStore):
        under_way = most = reads = 0

        async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
            self.reads += 1
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0.01)
            self.under_way -= 1
            return await super().get(key, byte_range)

    async def story(world: World) -> None:
        store = Watched(world.clock)
        log = Sequence(store, world.clock, "log/", "", identify)
        for number in range(40):
            await store.put(log.key(number), OUR_BODY)
        assert len([entry async for entry in log.iterate(0, read_ahead=4)]) == 40
        assert store.most == 4
        assert store.reads <= 44
        with pytest.raises(ValueError, match="read_ahead"):
            await anext(log.iterate(0, read_ahead=65))

    tell(story)


def test_a_long_sequence_costs_few_round_trips() -> None:
    class Distant(MemoryStore):
        async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
            await asyncio.sleep(0.1)
            return await super().get(key, byte_range)

    async def story(world: World) -> None:
        store = Distant(world.clock)
        log = Sequence(store, world.clock, "log/", "", identify)
        for number in range(200):
            await store.put(log.key(number), OUR_BODY)
        begun = world.clock.monotonic()
        assert len([entry async for entry in log.iterate(0)]) == 200
        assert world.clock.monotonic() - begun == pytest.approx(0.6, rel=0.01)

    tell(story)


def test_iteration_says_the_store_s_error() -> None:
    async def story(world: World) -> None:
        for number in range(10):
            await world.append(number)
        world.store.plan("get", StoreFault.REFUSED, key=world.log.key(6))
        entries = world.log.iterate(0)
        assert [(await anext(entries)).number for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(StoreNotApplied):
            await anext(entries)

    tell(story)


def test_ranges_of_an_entry_are_read() -> None:
    async def story(world: World) -> None:
        await world.append()
        assert (await world.log.read_range(0, Suffix(5))).data == b"entry"
        assert (await world.log.read_range(0, ByteRange(17, 3))).data == b"our"
        with pytest.raises(ObjectNotFound):
            await world.log.read(1)

    tell(story)


def test_a_sequence_works_above_retries() -> None:
    async def story(world: World) -> None:
        retrying = RetryingStore(world.store, world.clock, SeededEntropy(3))
        log = Sequence(retrying, world.clock, "log/", "", identify)
        world.store.plan("put", StoreFault.REFUSED, StoreFault.ANSWER_LOST)
        world.store.plan("get", StoreFault.REFUSED)
        assert isinstance(await log.append(0, OUR_BODY, OURS, DEADLINE), Mine)
        await world.truth.put(log.key(1), THEIR_BODY)
        assert await log.append(1, OUR_BODY, OURS, DEADLINE) == Taken(THEIR_BODY)

    tell(story)
