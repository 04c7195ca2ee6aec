"""Clients of a simulated cluster: producers that retry as real ones do, and consumers."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.simulation.history import History, Isolation, Key, Operation, Poll, Send
from tests.simulation.log_client import Fetched, LogClient, NoAnswer, OutgoingBatch, RequestRefused
from tidelog.clock import Clock

T = TypeVar("T")

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
OFFSET_OUT_OF_RANGE = 1
REFUSED_FOR_GOOD = frozenset({2, 10, 17, 18, 32, 42, 87})
"""Errors after which nothing was appended and repeating does not help: corrupt message, message
too large, invalid topic, record list too large, invalid timestamp, invalid request, invalid
record. All others may come after the append (Kafka answers NOT_LEADER_OR_FOLLOWER then, too)."""
CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
IN_FLIGHT_MAX = 5


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """The load of one run. Seconds are virtual."""

    keys: tuple[Key, ...]
    producers: int = 2
    plain_producers: int = 1
    consumers: int = 2
    observers: int = 2
    topic_churns: int = 1
    pause_seconds_mean: float = 0.25
    records_max: int = 4
    padding_bytes_max: int = 2000
    delivery_seconds_max: float = 40.0
    fetch_wait_seconds: float = 0.5
    reassign_probability: float = 0.02
    forget_probability: float = 0.05


@dataclass(slots=True)
class Actor:
    """What a client's code runs with."""

    name: str
    client: LogClient
    clock: Clock
    random: random.Random
    history: History
    settings: WorkloadSettings
    stopping: asyncio.Event

    async def pause(self, mean_seconds: float) -> None:
        """Think for a while; at once when the run is ending."""
        if not self.stopping.is_set():
            await self.clock.sleep(self.random.expovariate(1.0 / mean_seconds))

    async def backoff(self, attempt: int) -> None:
        """Wait before a retry, as clients do: 0.1 s doubling up to 1 s, with jitter."""
        await self.clock.sleep(min(0.1 * 2**attempt, 1.0) * self.random.uniform(0.8, 1.2))

    async def persist(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a harmless request until it is answered."""
        attempt = 0
        while True:
            try:
                return await request()
            except (RequestRefused, NoAnswer):
                await self.backoff(attempt)
                attempt += 1


class _Pipe:
    """The batches of one producer id in one partition, numbered in sequence order."""

    def __init__(self) -> None:
        self.next_sequence = 0
        self.broken = False
        """A batch was given up: no sequence behind it can be accepted any more."""
        self._next_number = 0
        self._unresolved: deque[int] = deque()
        self._changed = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether a batch more may be sent. Brokers recognise the last five, so that no more may
        lie between the oldest one without an answer and the newest one."""
        return not self._unresolved or self._next_number - self._unresolved[0] < IN_FLIGHT_MAX

    def begin(self, records: int) -> int:
        """A batch of so many records begins; its number."""
        number = self._next_number
        self._next_number += 1
        self.next_sequence += records
        self._unresolved.append(number)
        return number

    def is_first(self, number: int) -> bool:
        """Whether every batch before it is resolved."""
        return self._unresolved[0] == number

    def resolve(self, number: int) -> None:
        """It is answered, or given up."""
        self._unresolved.remove(number)
        self._changed.set()

    async def wait_for_turn(self, number: int) -> None:
        """Wait until every batch before it is resolved."""
        while not self.is_first(number):
            self._changed.clear()
            await self._changed.wait()


class IdempotentProducer:
    """Up to five batches in flight a partition; an unanswered one is repeated with its sequence."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._identity: tuple[int, int] | None = None
        self._pipes: dict[Key, _Pipe] = {}
        self._in_flight: dict[asyncio.Task[None], None] = {}
        self._expired = False
        self._values = 0

    async def run(self) -> None:
        """Produce until the run is ending, then wait for what is in flight."""
        actor = self._actor
        while not actor.stopping.is_set():
            if self._identity is None or self._expired:
                await self._begin_again()
            key = actor.random.choice(actor.settings.keys)
            pipe = self._pipes.setdefault(key, _Pipe())
            if pipe.has_room:
                self._start(key, pipe)
            await actor.pause(actor.settings.pause_seconds_mean)
        await self._drain()

    async def _begin_again(self) -> None:
        """A batch whose outcome is unknown leaves a hole in the sequences: take a new id."""
        await self._drain()
        self._expired = False
        self._pipes = {}
        self._identity = await self._actor.persist(self._actor.client.init_producer_id)

    async def _drain(self) -> None:
        while self._in_flight:
            await asyncio.wait(self._in_flight, return_when=asyncio.ALL_COMPLETED)

    def _start(self, key: Key, pipe: _Pipe) -> None:
        actor = self._actor
        assert self._identity is not None
        count = actor.random.randint(1, actor.settings.records_max)
        values = tuple(f"{actor.name}/{self._values + place}" for place in range(count))
        self._values += len(values)
        batch = OutgoingBatch(
            key,
            values,
            actor.random.choice(CODECS),
            *self._identity,
            pipe.next_sequence,
            actor.random.randint(0, actor.settings.padding_bytes_max),
        )
        number = pipe.begin(len(values))
        operation = actor.history.invoke(actor.name, "send", [Send(key, value) for value in values])
        delivery = self._deliver(batch, pipe, number, operation)
        task = asyncio.create_task(delivery, name=f"batch {values[0]}")
        self._in_flight[task] = None
        task.add_done_callback(self._in_flight.pop)

    async def _deliver(
        self, batch: OutgoingBatch, pipe: _Pipe, number: int, operation: Operation
    ) -> None:
        actor = self._actor
        attempt = 0
        give_up_at = actor.clock.monotonic() + actor.settings.delivery_seconds_max
        while True:
            first = pipe.is_first(number)
            try:
                base_offset = await actor.client.produce(batch)
            except (RequestRefused, NoAnswer) as error:
                if _is_out_of_order(error) and first and not pipe.broken:
                    actor.history.violate(f"{batch} was refused as out of order: state was lost")
                if pipe.broken or actor.clock.monotonic() > give_up_at:
                    pipe.broken = self._expired = True
                    actor.history.unknown(operation, _text(error))
                    break
                actor.history.errors[f"retried {_text(error)}"] += 1
                await pipe.wait_for_turn(number)
                await actor.backoff(attempt)
                attempt += 1
                continue
            for offset, send in enumerate(operation.sends, base_offset):
                send.offset = offset
            actor.history.ok(operation)
            break
        pipe.resolve(number)


class PlainProducer:
    """One batch at a time, never repeated: whatever is not answered stays unknown."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._values = 0

    async def run(self) -> None:
        """Produce until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            key = actor.random.choice(actor.settings.keys)
            count = actor.random.randint(1, actor.settings.records_max)
            values = tuple(f"{actor.name}/{self._values + number}" for number in range(count))
            self._values += count
            await self._send(OutgoingBatch(key, values, actor.random.choice(CODECS)))
            await actor.pause(actor.settings.pause_seconds_mean)

    async def _send(self, batch: OutgoingBatch) -> None:
        actor = self._actor
        sends = [Send(batch.key, value) for value in batch.values]
        operation = actor.history.invoke(actor.name, "send", sends)
        try:
            base_offset = await actor.client.produce(batch, actor.random.choice((-1, 1)))
        except RequestRefused as error:
            if error.code in REFUSED_FOR_GOOD:
                actor.history.fail(operation, _text(error))
            else:
                actor.history.unknown(operation, _text(error))
                await actor.backoff(0)
        except NoAnswer as error:
            actor.history.unknown(operation, _text(error))
            await actor.backoff(0)
        else:
            for offset, send in enumerate(operation.sends, base_offset):
                send.offset = offset
            actor.history.ok(operation)


class Consumer:
    """Reads some partitions on and on; now and then takes others, from other positions."""

    def __init__(self, actor: Actor, isolation: Isolation) -> None:
        self._actor = actor
        self._isolation: Isolation = isolation
        self._positions: dict[Key, int] = {}

    async def run(self) -> None:
        """Consume until the run is ending."""
        actor = self._actor
        attempt = 0
        await self._assign()
        while not actor.stopping.is_set():
            try:
                await read_once(
                    actor, self._positions, self._isolation, actor.settings.fetch_wait_seconds
                )
            except (RequestRefused, NoAnswer):
                await actor.backoff(attempt)
                attempt += 1
                continue
            attempt = 0
            if actor.random.random() < actor.settings.forget_probability:
                actor.client.forget()
            if actor.random.random() < actor.settings.reassign_probability:
                await self._assign()

    async def _assign(self) -> None:
        actor = self._actor
        keys = actor.settings.keys
        chosen = actor.random.sample(keys, actor.random.randint(1, len(keys)))
        self._positions.clear()
        for key in chosen:
            start = 0
            if actor.random.random() < 0.5:
                end = await actor.persist(lambda key=key: actor.client.end_offset(key))  # type: ignore[misc]
                start = max(0, end - actor.random.randint(0, 20))
            self._positions[key] = start
        actor.history.assign(actor.name)


class Observer:
    """Asks one broker or another how far a partition reaches; never sees less than was known."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def run(self) -> None:
        """Observe until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            if actor.random.random() < 0.5:
                actor.client.forget()
            key = actor.random.choice(actor.settings.keys)
            operation = actor.history.invoke(actor.name, "poll")
            try:
                end = await actor.client.end_offset(key, "read_uncommitted")
            except (RequestRefused, NoAnswer) as error:
                actor.history.fail(operation, _text(error))
            else:
                operation.polls = [Poll(key, end, end, [], "read_uncommitted", end)]
                actor.history.ok(operation)
            await actor.pause(actor.settings.pause_seconds_mean)


class TopicChurn:
    """Creates a topic, writes, reads, deletes it, and begins again under the same name: no topic
    ever shows what an earlier one of its name held."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._generation = 0

    async def run(self) -> None:
        """Go on until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            self._generation += 1
            await actor.persist(lambda: actor.client.create_topic(actor.name, 1, {}))
            for number in range(actor.random.randint(0, 3)):
                await self._send(number)
                await actor.pause(actor.settings.pause_seconds_mean)
            await self._read()
            await actor.persist(lambda: actor.client.delete_topic(actor.name))
            actor.history.deleted.add(self._key)
            await actor.pause(4 * actor.settings.pause_seconds_mean)

    @property
    def _key(self) -> Key:
        """How the history names the topic: each creation is another one."""
        return Key(f"{self._actor.name}#{self._generation}", 0)

    async def _send(self, number: int) -> None:
        actor = self._actor
        value = f"{actor.name}/{self._generation}/{number}"
        operation = actor.history.invoke(actor.name, "send", [Send(self._key, value)])
        try:
            batch = OutgoingBatch(Key(actor.name, 0), (value,))
            operation.sends[0].offset = await actor.client.produce(batch)
        except (RequestRefused, NoAnswer) as error:
            actor.history.unknown(operation, _text(error))
        else:
            actor.history.ok(operation)

    async def _read(self) -> None:
        actor, key = self._actor, Key(self._actor.name, 0)
        actor.history.assign(actor.name)
        position = end = 0
        while position == 0 or position < end:
            operation = actor.history.invoke(actor.name, "poll")
            try:
                (answer,) = await actor.client.fetch({key: position}, "read_committed", 0.1)
            except (RequestRefused, NoAnswer) as error:
                actor.history.fail(operation, _text(error))
                await actor.backoff(2)
                continue
            end = answer.high_watermark
            operation.polls = [
                Poll(self._key, position, answer.next_offset, answer.records, high_watermark=end)
            ]
            actor.history.ok(operation)
            position = answer.next_offset
            if end == 0:
                return


async def read_once(
    actor: Actor,
    positions: dict[Key, int],
    isolation: Isolation,
    wait_seconds: float,
    final: bool = False,
) -> list[Fetched]:
    """One fetch, recorded as one operation; advances the positions."""
    operation = actor.history.invoke(actor.name, "poll", final=final)
    try:
        answers = await actor.client.fetch(dict(positions), isolation, wait_seconds)
    except RequestRefused as error:
        if error.code == OFFSET_OUT_OF_RANGE:
            actor.history.violate(f"{actor.name} at {positions}: {error}, nothing was deleted")
        actor.history.fail(operation, _text(error))
        raise
    except NoAnswer as error:
        actor.history.fail(operation, _text(error))
        raise
    for fetched in answers:
        operation.polls.append(
            Poll(
                fetched.key,
                positions[fetched.key],
                fetched.next_offset,
                fetched.records,
                isolation,
                fetched.high_watermark,
            )
        )
        positions[fetched.key] = fetched.next_offset
    actor.history.ok(operation)
    return answers


async def read_everything(actor: Actor) -> None:
    """The final read: each partition from its beginning to its end, when all faults are healed."""
    positions = dict.fromkeys(actor.settings.keys, 0)
    ends = {
        key: await actor.persist(lambda key=key: actor.client.end_offset(key))  # type: ignore[misc]
        for key in actor.settings.keys
    }
    actor.history.assign(actor.name)
    attempt = 0
    # An operation a partition at least, so that a partition without records is known as read.
    left = dict(positions)
    while left:
        try:
            answers = await read_once(actor, left, "read_committed", 0.1, final=True)
        except (RequestRefused, NoAnswer):
            await actor.backoff(attempt)
            attempt += 1
            continue
        for fetched in answers:
            actor.history.batches += fetched.batches
        left = {key: position for key, position in left.items() if position < ends[key]}


def _is_out_of_order(error: Exception) -> bool:
    return isinstance(error, RequestRefused) and error.code == OUT_OF_ORDER_SEQUENCE_NUMBER


def _text(error: Exception) -> str:
    return error.name if isinstance(error, RequestRefused) else f"no answer: {error}"
