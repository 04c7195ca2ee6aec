"""Producers: idempotent ones that retry as real clients do, and plain ones that never repeat."""

from __future__ import annotations

import asyncio
from collections import deque

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.log_client import NoAnswer, OutgoingBatch, RequestRefused
from tests.simulation.rules.history import Key, Operation, Send

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
REFUSED_FOR_GOOD = frozenset({2, 10, 17, 18, 32, 42, 87})
"""Errors after which nothing was appended and repeating does not help: corrupt message, message too
large, invalid topic, record list too large, invalid timestamp, invalid request, invalid record. Any
other error may come after the append (Kafka answers NOT_LEADER_OR_FOLLOWER then, too)."""
CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
IN_FLIGHT_MAX = 5
_HASTY_PROBABILITY = 0.3
"""The probability that a plain producer asks for the log's end before its batch is answered."""


class _Pipe:
    """The batches of one producer id in one partition, numbered in sequence order."""

    def __init__(self) -> None:
        self.next_sequence = 0
        self.broken = False
        """A batch was given up, so no later sequence can be accepted any more."""
        self._next_number = 0
        self._unresolved: deque[int] = deque()
        self._changed = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be sent. Brokers recognise the last five batches, so at most
        five may lie between the oldest unanswered batch and the newest one."""
        return not self._unresolved or self._next_number - self._unresolved[0] < IN_FLIGHT_MAX

    def begin(self, records: int) -> int:
        """A batch of this many records begins. Returns its number."""
        number = self._next_number
        self._next_number += 1
        self.next_sequence += records
        self._unresolved.append(number)
        return number

    def is_first(self, number: int) -> bool:
        """Whether every batch before it is resolved."""
        return self._unresolved[0] == number

    def resolve(self, number: int) -> None:
        """The batch is answered or given up."""
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
        """Produce until the run is ending, then wait for the batches in flight."""
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
        """Take a new id, since a batch whose outcome is unknown leaves a hole in the sequences."""
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
        values = tuple(
            actor.settings.value(actor.random, key, f"{actor.name}/{self._values + place}")
            for place in range(count)
        )
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
                    actor.history.unknown(operation, error_text(error))
                    break
                actor.history.errors[f"retried {error_text(error)}"] += 1
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
    """Sends one batch at a time and never repeats it. The outcome of an unanswered batch stays
    unknown."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._values = 0

    async def run(self) -> None:
        """Produce until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            key = actor.random.choice(actor.settings.keys)
            count = actor.random.randint(1, actor.settings.records_max)
            values = tuple(
                actor.settings.value(actor.random, key, f"{actor.name}/{self._values + number}")
                for number in range(count)
            )
            self._values += count
            await self._send(OutgoingBatch(key, values, actor.random.choice(CODECS)))
            await actor.pause(actor.settings.pause_seconds_mean)

    async def _send(self, batch: OutgoingBatch) -> None:
        actor = self._actor
        sends = [Send(batch.key, value) for value in batch.values]
        operation = actor.history.invoke(actor.name, "send", sends)
        end: int | None = None
        try:
            if actor.random.random() < _HASTY_PROBABILITY:
                base_offset, end = await actor.client.produce_and_end(batch)
            else:
                base_offset = await actor.client.produce(batch, actor.random.choice((-1, 1)))
        except RequestRefused as error:
            if error.code in REFUSED_FOR_GOOD:
                actor.history.fail(operation, error_text(error))
            else:
                actor.history.unknown(operation, error_text(error))
                await actor.backoff(0)
        except NoAnswer as error:
            actor.history.unknown(operation, error_text(error))
            await actor.backoff(0)
        else:
            for offset, send in enumerate(operation.sends, base_offset):
                send.offset = offset
            actor.history.ok(operation)
            if end is not None and end < base_offset + len(sends):
                text = f"{operation}: on the same connection {batch.key} ends at {end} behind it"
                actor.history.violate(text)


def _is_out_of_order(error: Exception) -> bool:
    return isinstance(error, RequestRefused) and error.code == OUT_OF_ORDER_SEQUENCE_NUMBER
