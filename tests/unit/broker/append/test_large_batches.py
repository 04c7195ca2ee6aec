"""Batches that decompress to much more than their size: they keep no other client waiting."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import ParamSpec, TypeVar

import pytest

from tests.unit.broker.one_broker import OneBroker, World, produce_request
from tidelog.broker.append.large_batches import LargeBatches
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.produce import PartitionProduceResponse
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.stores.memory import MemoryStore
from tidelog.workers.offload import InlineOffload

P = ParamSpec("P")
T = TypeVar("T")
GREEDY, OTHER = 7, 8
LARGE_BYTES = 3_000_000


def batch(value: bytes, codec: Compression = Compression.ZSTD) -> bytes:
    return bytes(encode_batch([NewRecord(value)], compression=codec))


LARGE = batch(bytes(LARGE_BYTES))


class HeldOffload(InlineOffload):
    """Does its work when the test lets it go."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        """Released at the beginning of each piece of work."""
        self.let_go = asyncio.Event()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.begun.release()
        await self.let_go.wait()
        return function(*args, **kwargs)


async def send(
    one: OneBroker, connection: int, records: bytes, timeout_ms: int = 60_000, acks: int = -1
) -> PartitionProduceResponse:
    request = produce_request("flights", 0, records, acks, timeout_ms)
    context = RequestContext(9, 1, "test", "127.0.0.1", connection)
    response = await produce(one.broker.services.data, request, context)
    assert response is not None
    return response.responses[0].partition_responses[0]


def sent(
    one: OneBroker, connection: int, *batches: bytes, **options: int
) -> list[asyncio.Task[PartitionProduceResponse]]:
    return [asyncio.create_task(send(one, connection, each, **options)) for each in batches]


def run(story: Callable[[OneBroker, HeldOffload], Awaitable[None]]) -> None:
    async def main() -> None:
        held = HeldOffload()
        world = World(MemoryStore(SystemClock(), "memory://test"))
        world.large_batches = held
        try:
            async with asyncio.timeout(10), world.broker() as one:
                await one.create_topic()
                try:
                    await story(one, held)
                finally:
                    held.let_go.set()
        finally:
            held.let_go.set()

    asyncio.run(main())


def test_other_clients_are_served_while_large_batches_are_decompressed() -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        large = sent(one, GREEDY, LARGE, LARGE)
        await held.begun.acquire()
        for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
            answer = await send(one, OTHER, batch(b"small", codec))
            assert answer.error_code == ErrorCode.NONE
        assert not any(task.done() for task in large)
        held.let_go.set()
        offsets = [(await task).base_offset for task in large]
        assert offsets == [3, 4]

    run(story)


def test_a_connection_s_requests_keep_their_order() -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        first = sent(one, GREEDY, batch(b"0"), LARGE, batch(b"2"), batch(b"3"), LARGE, batch(b"5"))
        await held.begun.acquire()
        later = sent(one, GREEDY, batch(b"6", Compression.NONE), LARGE, batch(b"8"))
        assert (await first[0]).base_offset == 0
        held.let_go.set()
        answers = [await task for task in (*first, *later)]
        assert [answer.base_offset for answer in answers] == list(range(9))
        sizes = [len(record.value or b"") for record in await one.read_all()]
        large = LARGE_BYTES
        assert sizes == [1, large, 1, 1, large, 1, 1, large, 1]

    run(story)


class HesitantOffload(InlineOffload):
    """Does its work after some passes of the event loop."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(self._chance.randrange(8)):
            await asyncio.sleep(0)
        return function(*args, **kwargs)


@pytest.mark.parametrize("seed", range(10))
def test_the_log_keeps_the_order_of_each_connection_despite_slow_batches(seed: int) -> None:
    chance = random.Random(seed)
    kinds = [LARGE, batch(b"small"), batch(b"plain", Compression.NONE)]

    async def main() -> None:
        world = World(
            MemoryStore(SystemClock(), "memory://test"),
            large_batches_percent_max=100,
            large_batches_connection_percent_max=100,
        )
        world.offload = HesitantOffload(chance)
        world.large_batches = HesitantOffload(chance)
        async with asyncio.timeout(60), world.broker() as one:
            await one.create_topic()
            tasks: dict[int, list[asyncio.Task[PartitionProduceResponse]]] = {1: [], 2: [], 3: []}
            for _ in range(60):
                connection = chance.choice(list(tasks))
                tasks[connection] += sent(one, connection, chance.choice(kinds))
                for _ in range(chance.choice((0, 0, 1, 10))):
                    await asyncio.sleep(0)
            offsets = {each: [(await task).base_offset for task in tasks[each]] for each in tasks}
            assert sorted(chain.from_iterable(offsets.values())) == list(range(60))
            for of_connection in offsets.values():
                assert of_connection == sorted(of_connection)

    asyncio.run(main())


def test_waiting_submissions_of_a_lost_connection_are_dropped_and_their_memory_released() -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        waiting = sent(one, GREEDY, *[LARGE] * 5)
        await held.begun.acquire()
        assert len(one.broker.writes.large_batches) == 4
        one.broker.writes.appender.lost(GREEDY)
        answers = [await task for task in waiting[1:]]
        assert {each.error_code for each in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert len(one.broker.writes.large_batches) == 0
        held.let_go.set()
        assert (await waiting[0]).base_offset == 0
        assert held.begun.locked()
        assert (await send(one, OTHER, batch(b"last"))).base_offset == 1

    run(story)


def test_a_connection_that_is_lost_before_its_batches_are_looked_at_leaves_none() -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        waiting = sent(one, GREEDY, *[LARGE] * 5)
        await asyncio.sleep(0)
        one.broker.writes.appender.lost(GREEDY)
        answers = [await task for task in waiting]
        assert {each.error_code for each in answers} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert held.begun.locked()

    run(story)


def test_no_batch_of_a_lost_connection_overtakes_the_one_under_examination() -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        first = sent(one, GREEDY, LARGE)
        await held.begun.acquire()
        later = sent(one, GREEDY, batch(b"later", Compression.NONE))
        # It has come, and the appender has not looked at it yet.
        await asyncio.sleep(0)
        one.broker.writes.appender.lost(GREEDY)
        assert (await later[0]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        held.let_go.set()
        assert (await first[0]).base_offset == 0
        assert (await send(one, GREEDY, batch(b"again"))).base_offset == 1

    run(story)


def test_a_request_that_waits_too_long_for_its_turn_is_not_appended() -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        first = sent(one, GREEDY, LARGE)
        await held.begun.acquire()
        answer = await send(one, GREEDY, LARGE, timeout_ms=10)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "nothing was appended" in (answer.error_message or "")
        held.let_go.set()
        assert (await first[0]).base_offset == 0
        assert (await send(one, GREEDY, batch(b"last"))).base_offset == 1

    run(story)


def test_a_batch_beyond_the_limit_is_refused_after_all() -> None:
    async def main() -> None:
        world = World(MemoryStore(SystemClock(), "memory://test"), decompressed_bytes_max=2_000_000)
        async with world.broker() as one:
            await one.create_topic()
            answer = await send(one, GREEDY, LARGE)
            assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE

    asyncio.run(main())


def test_a_search_for_a_time_in_a_large_batch_keeps_no_producer_waiting() -> None:
    async def main() -> None:
        held = HeldOffload()
        world = World(MemoryStore(SystemClock(), "memory://test"))
        world.background = held
        dated = NewRecord(bytes(LARGE_BYTES), timestamp=1000)
        async with asyncio.timeout(20), world.broker() as one:
            await one.create_topic()
            await send(one, GREEDY, bytes(encode_batch([dated], compression=Compression.ZSTD)))
            looking = asyncio.create_task(one.offsets(500))
            await held.begun.acquire()
            assert (await send(one, OTHER, batch(b"small"))).base_offset == 1
            assert not looking.done()
            held.let_go.set()
            assert (await looking).offset == 0

    asyncio.run(main())


class TestTurns:
    """The pure core: which request has the turn, and when."""

    def lanes(self, connection_percent: int = 25, broker_percent: int = 50) -> LargeBatches:
        return LargeBatches(connection_percent, broker_percent)

    def test_connections_take_turns(self) -> None:
        large: LargeBatches[str, int] = self.lanes(100, 100)
        for number in range(3):
            for connection in ("a", "b"):
                large.add(connection, number)
        served = []
        for now in range(6):
            connection = large.next_connection(now)
            assert connection is not None
            served.append((connection, large.take(connection)))
            for request in large.examined(connection, 0.5, now):
                large.add(connection, request)
        assert served == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
        assert len(large) == 0
        assert large.next_connection(9) is None

    def test_the_broker_pauses_for_as_long_as_a_batch_took(self) -> None:
        large: LargeBatches[str, int] = self.lanes()
        large.add("a", 1)
        large.add("b", 1)
        assert large.seconds_until("a", 100.0) <= 0
        large.take("a")
        assert not large.examined("a", 2.0, 102.0)
        assert large.seconds_until("b", 102.0) == 2.0

    def test_one_connection_pauses_for_longer_and_lets_others_pass(self) -> None:
        large: LargeBatches[str, int] = self.lanes()
        large.add("a", 1)
        large.take("a")
        large.examined("a", 2.0, 102.0)
        large.add("a", 2)
        large.add("b", 1)
        assert large.next_connection(104.0) == "b"
        assert large.seconds_until("a", 104.0) == 4.0
        assert large.next_connection(108.0) == "a"
        assert large.seconds_until("a", 108.0) == 0.0

    def test_a_connection_is_remembered_only_while_it_has_to_pause(self) -> None:
        large: LargeBatches[int, int] = self.lanes()
        for connection in range(100):
            large.add(connection, 1)
            large.take(connection)
            large.examined(connection, 1.0, connection * 10.0)
            assert connection not in large.connections
        assert len(large._next_at) == 1

    def test_the_last_ones_are_told_when_the_broker_ends(self) -> None:
        large: LargeBatches[str, int] = self.lanes()
        large.add("a", 1)
        large.add("b", 2)
        assert list(large.drain()) == [1, 2]
        assert len(large) == 0


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_a_large_batch_of_any_codec_is_put_off(codec: Compression) -> None:
    async def story(one: OneBroker, held: HeldOffload) -> None:
        # Snappy compresses nothing to less than a twentieth.
        (large,) = sent(one, GREEDY, batch(bytes(5 * LARGE_BYTES), codec))
        await held.begun.acquire()
        assert (await send(one, OTHER, batch(b"small"))).base_offset == 0
        held.let_go.set()
        assert (await large).error_code in (ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE)

    run(story)
