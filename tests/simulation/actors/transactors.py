"""Transactional clients: transfers over several partitions, and consume-transform-produce.

Each transactional id is wanted by two instances that take it from each other, in the midst of
transactions; instances stall beyond their timeouts, die without a word, and abort on purpose.
"""

from __future__ import annotations

import asyncio

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.group_readers import Seat
from tests.simulation.actors.log_client import NoAnswer
from tests.simulation.actors.log_client import RequestRefused as FetchRefused
from tests.simulation.actors.producers import CODECS
from tests.simulation.rules.history import GroupAdvance, Identity, Key, Operation, Poll, Send
from tests.simulation.values import new_record
from tidelog.client.errors import RequestFailed, RequestOutcome, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership_requests import GroupMembership
from tidelog.client.patience import ClientRetrySettings
from tidelog.client.pool import Client
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.records.compression import Compression

TRANSFORM_GROUP = "transform"
SEPARATOR = ">"
"""Separates an input's value from the mark that makes the derived value unique."""
_COMMIT_ATTEMPTS_MAX = 3
_STALL_PROBABILITY = 0.04
_STALL_SECONDS_MAX = 12.0


class Instance:
    """One instance of a transactional id: its producer and its entries in the history."""

    def __init__(self, actor: Actor, client: Client, transactional_id: str, name: str) -> None:
        self.actor = actor
        self.name = name
        self.producer = TransactionalProducer(
            client,
            actor.clock,
            actor.entropy,
            transactional_id,
            TransactionalProducerSettings(
                transaction_timeout_ms=actor.random.choice((3000, 8000, 20_000)),
                delivery_timeout_ms=12_000,
                api_timeout_ms=15_000,
                retries=ClientRetrySettings(20, 1000),
                version=TransactionVersion(
                    actor.random.choice(actor.settings.transaction_versions)
                ),
            ),
        )
        self._written = 0

    async def initialise(self) -> bool:
        """Take the transactional id over. Returns whether that succeeded."""
        actor = self.actor
        operation = actor.history.invoke(actor.name, "identity")
        try:
            await self.producer.init_transactions()
        except (RequestFailed, RequestRefused) as error:
            actor.history.unknown(operation, error_text(error))
            return False
        operation.identity = self.identity()
        actor.history.ok(operation)
        return True

    def identity(self) -> Identity:
        """The identity that the instance was issued last."""
        producer = self.producer
        own_epochs = producer.version is TransactionVersion.V2
        return Identity(producer.transactional_id, self.name, *producer.identity, own_epochs)

    def fresh(self, count: int) -> list[str]:
        """Values that no producer has written yet."""
        first = self._written
        self._written += count
        return [f"{self.name}/{number}" for number in range(first, self._written)]

    async def send(self, operation: Operation, key: Key, values: list[str]) -> None:
        """Send a batch as part of the transaction. Raises as `TransactionalProducer.send`."""
        actor = self.actor
        sends = [Send(key, value) for value in values]
        operation.sends += sends
        padding = actor.random.randint(0, actor.settings.padding_bytes_max)
        records = [new_record(value, padding, actor.clock.time_ms()) for value in values]
        codec = Compression[actor.random.choice(CODECS).upper()]
        base_offset = await self.producer.send(*key, records, codec)
        if base_offset >= 0:
            for offset, send in enumerate(sends, base_offset):
                send.offset = offset

    async def commit(self, operation: Operation) -> bool:
        """Commit. An unanswered commit is repeated before any other request. Returns whether the
        instance can go on."""
        history = self.actor.history
        history.ends(operation)
        for remaining in reversed(range(_COMMIT_ATTEMPTS_MAX)):
            try:
                await self.producer.commit()
            except MustAbort as error:
                return await self.abort(operation, error)
            except ProducerFenced as error:
                if error.outcome is RequestOutcome.UNKNOWN:
                    history.unknown(operation, "fenced")
                else:
                    history.fail(operation, "fenced")
                return False
            except (RequestFailed, RequestRefused) as error:
                if not remaining:
                    history.unknown(operation, error_text(error))
                    return False
            else:
                operation.identity = self.identity()
                history.ok(operation)
                return True
        raise AssertionError("the last attempt returns")

    async def abort(self, operation: Operation, why: MustAbort | None) -> bool:
        """Abort, on purpose or of necessity. Returns whether the instance can go on."""
        history = self.actor.history
        text = "on purpose"
        if why is not None:
            text = f"must abort: {error_text(why.cause or why)}"
        try:
            await self.producer.abort()
        except (ProducerFenced, RequestFailed, RequestRefused):
            history.fail(operation, text)
            return False
        operation.identity = self.identity()
        history.fail(operation, text)
        return True


class Transactor:
    """Runs one life of an instance after the other."""

    def __init__(self, actor: Actor, transactional_id: str, pause_seconds_mean: float) -> None:
        """The pause is between lives: while one instance rests, the other works."""
        self._actor = actor
        self._transactional_id = transactional_id
        self._pause_seconds_mean = pause_seconds_mean
        self._lives = 0

    async def run(self) -> None:
        """Transact until the run is ending."""
        actor = self._actor
        while not self.is_over():
            async with actor.kafka() as client:
                self._lives += 1
                name = f"{actor.name}.{self._lives}"
                instance = Instance(actor, client, self._transactional_id, name)
                if await instance.initialise():
                    await self.live(instance, client)
            if not self.is_over():
                await actor.clock.sleep(actor.random.expovariate(1 / self._pause_seconds_mean))

    def is_over(self) -> bool:
        """Whether no further transaction is to begin."""
        return self._actor.stopping.is_set()

    async def live(self, instance: Instance, client: Client) -> None:
        """Transactions until the instance dies, is fenced, or the run is ending."""
        while not self.is_over():
            if not await self._transfer(instance):
                return
            await self._actor.pause(self._actor.settings.pause_seconds_mean)

    async def _transfer(self, instance: Instance) -> bool:
        """Run one transaction. Returns whether the instance can go on."""
        actor = self._actor
        operation = actor.history.invoke(actor.name, "transaction")
        instance.producer.begin()
        try:
            for _ in range(actor.random.randint(1, 3)):
                await self._step(instance, operation)
        except ProducerFenced:
            actor.history.fail(operation, "fenced")
            return False
        except MustAbort as error:
            return await instance.abort(operation, error)
        return await end(instance, operation)

    async def _step(self, instance: Instance, operation: Operation) -> None:
        """Send to some partitions at once; now and then look around, or stall."""
        actor = self._actor
        keys = actor.random.sample(actor.settings.keys, actor.random.randint(1, 3))
        sends = [
            instance.send(
                operation,
                key,
                [
                    actor.settings.value(actor.random, key, text)
                    for text in instance.fresh(actor.random.randint(1, 3))
                ],
            )
            for key in keys
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not operation.polls and actor.random.random() < 0.2:
            await self._look(operation, keys[0])
        await stall_perhaps(actor)

    async def _look(self, operation: Operation, key: Key) -> None:
        """Read as a read_committed consumer where this transaction has just written: its values
        must not show."""
        actor = self._actor
        try:
            end = await actor.client.end_offset(key)
            start = max(0, end - 5)
            (fetched,) = await actor.client.fetch({key: start}, "read_committed", 0.05)
        except (FetchRefused, NoAnswer):
            return
        actor.history.assign(actor.name)
        operation.polls.append(Poll(key, start, fetched.next_offset, fetched.records))


async def end(instance: Instance, operation: Operation) -> bool:
    """Commit, abort on purpose, or die. Returns whether the instance can go on."""
    actor = instance.actor
    chance = 1.0 if actor.stopping.is_set() else actor.random.random()
    if chance < 0.03:
        actor.history.fail(operation, "died")
        return False
    if chance < 0.25:
        return await instance.abort(operation, None)
    return await instance.commit(operation)


async def stall_perhaps(
    actor: Actor, seat: Seat | None = None, probability: float = _STALL_PROBABILITY
) -> None:
    """Now and then, pause beyond the transaction's timeout and beyond the session timeout of the
    group, as a stopped process does."""
    if actor.stopping.is_set() or actor.random.random() >= probability:
        return
    if seat is not None:
        await seat.sleep()
    await actor.clock.sleep(actor.random.uniform(0.5, _STALL_SECONDS_MAX))
    if seat is not None:
        seat.wake()


class Transformer(Transactor):
    """Consumes as a member of a group, and writes derived values together with the offsets."""

    def is_over(self) -> bool:
        return self._actor.closing.is_set()

    async def live(self, instance: Instance, client: Client) -> None:
        actor = self._actor
        async with actor.kafka() as group_client:
            settings = actor.settings
            seat = Seat(
                actor, group_client, TRANSFORM_GROUP, settings.inputs, settings.transform_protocol
            )
            seat.wake()
            try:
                await self._transform(instance, seat)
            finally:
                await seat.sleep()

    async def _transform(self, instance: Instance, seat: Seat) -> None:
        actor = self._actor
        while not self.is_over():
            membership = seat.member.membership
            if seat.member.must_join or membership is None:
                await seat.join()
            elif not seat.positions:
                await actor.clock.sleep(0.3)
                if membership.assignment:
                    await seat.rewind(membership)
            else:
                operation = await self._consume(seat)
                if operation is not None and not await self._derive(
                    instance, seat, membership, operation
                ):
                    return
                if operation is not None and operation.outcome != "ok":
                    await seat.rewind(membership)
            await actor.pause(actor.settings.consume_pause_seconds_mean)
        await seat.leave()

    async def _consume(self, seat: Seat) -> Operation | None:
        """Fetch the inputs. Returns None if there are none."""
        actor = self._actor
        asked = dict(seat.positions)
        try:
            answers = await actor.client.fetch(
                asked, "read_committed", actor.settings.fetch_wait_seconds
            )
        except (FetchRefused, NoAnswer):
            await actor.backoff(1)
            return None
        if all(fetched.next_offset == asked[fetched.key] for fetched in answers):
            return None
        operation = actor.history.invoke(actor.name, "transaction")
        for fetched in answers:
            start = asked[fetched.key]
            if fetched.next_offset > start:
                operation.polls.append(
                    Poll(fetched.key, start, fetched.next_offset, fetched.records)
                )
                operation.advances.append(
                    GroupAdvance(seat.group, fetched.key, start, fetched.next_offset)
                )
        return operation

    async def _derive(
        self, instance: Instance, seat: Seat, membership: GroupMembership, operation: Operation
    ) -> bool:
        """Write the derived values and the offsets of the inputs, as the member that has read them.
        Returns whether the instance can go on."""
        actor, producer = self._actor, instance.producer
        producer.begin()
        try:
            await self._write(instance, operation)
            await stall_perhaps(actor, seat)
            offsets = {Place(*one.key): one.end for one in operation.advances}
            await producer.send_offsets(seat.group, offsets, membership)
            # Other members may take the partitions over while the offsets are pending.
            await stall_perhaps(actor, seat, 3 * _STALL_PROBABILITY)
        except ProducerFenced:
            actor.history.fail(operation, "fenced")
            return False
        except MustAbort as error:
            return await instance.abort(operation, error)
        goes_on = await end(instance, operation)
        if operation.outcome == "ok":
            for one in operation.advances:
                if one.key in seat.positions:
                    seat.positions[one.key] = one.end
        return goes_on

    async def _write(self, instance: Instance, operation: Operation) -> None:
        actor = self._actor
        inputs = [value for poll in operation.polls for _, value in poll.records]
        # Write at least one output: outputs tell whether an unknown commit was committed or
        # aborted.
        marks = instance.fresh(len(inputs) + 1)
        outputs = [f"{value}{SEPARATOR}{mark}" for value, mark in zip(inputs, marks, strict=False)]
        outputs.append(marks[-1])
        by_key: dict[Key, list[str]] = {}
        for output in outputs:
            by_key.setdefault(actor.random.choice(actor.settings.derived), []).append(output)
        for key, values in by_key.items():
            await instance.send(operation, key, values)
