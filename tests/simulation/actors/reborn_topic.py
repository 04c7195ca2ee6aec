"""Topics that are deleted and created again under one name, beside transactions of several brokers.

A broker may not know yet that a topic was deleted, and take records and offsets for it. So the
topic's partitions count as deleted in the history, and no value must be there. At the end an audit
looks whether

- no transaction is open in the newest topic;
- readers see no value of an aborted transaction, and no value twice;
- the group has lost the offsets that were committed before the newest topic was created;
- a transaction that begins when all faults are healed is seen, and its offsets are there.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.log_client import NoAnswer
from tests.simulation.actors.log_client import RequestRefused as FetchRefused
from tests.simulation.actors.transactors import Instance, end
from tests.simulation.rules.history import Key, Operation, Outcome, Send
from tests.simulation.rules.reborn_rules import offset_of, old_offsets, wrong_values
from tests.simulation.values import new_record
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place, committed_offsets
from tidelog.client.pool import Client
from tidelog.client.transactions.errors import MustAbort, ProducerFenced

REBORN_TOPICS = ("reborn-0", "reborn-1", "reborn-2")
REBORN_GROUP = "reborn"
PARTITIONS = 2
_PROBABILITY = 0.4
_TRANSACTIONS_MAX = 3
_OTHERS_PROBABILITY = 0.3
"""The probability that a transaction writes to a topic that stays as well."""
_OFFSETS_PROBABILITY = 0.4
"""The probability that a transaction commits offsets of the topic."""
_AUDIT_SECONDS_MAX = 90.0
_POLL_SECONDS = 0.5


def has_reborn_topics(seed: int) -> bool:
    """Whether such topics are part of a seed."""
    return random.Random(f"reborn {seed}").random() < _PROBABILITY


class RebornTopic:
    """Deletes the topic, creates it again, and transacts on it at once, again and again.

    Each creation has an instance of its own. It fences the one before while the old topic is there,
    so no late request of that one gets into the new topic.
    """

    def __init__(self, actor: Actor, topic: str) -> None:
        self._actor = actor
        self._topic = topic
        self._instances = 0
        self._offsets = 0

    async def run(self) -> None:
        """Go on until the run is ending. The last topic stays."""
        actor = self._actor
        while not actor.stopping.is_set():
            async with actor.kafka() as client:
                instance = self._instance(client)
                if not await instance.initialise():
                    await actor.backoff(1)
                    continue
                await self._replace()
                await self._transact(instance)
            await actor.pause(actor.settings.pause_seconds_mean)

    async def audit(self) -> None:
        """Wait until the topic takes transactions, and has kept the rules."""
        actor = self._actor
        give_up_at = actor.clock.monotonic() + _AUDIT_SECONDS_MAX
        await actor.persist(lambda: actor.client.create_topic(self._topic, PARTITIONS, {}))
        async with actor.kafka() as client:
            has_written = False
            while True:
                why = await self._unstable() or await self._wrong_offsets(client, has_written)
                if not why and not has_written:
                    has_written = await self._transact_at_rest(client)
                    why = "" if has_written else "no transaction succeeded"
                elif not why:
                    break
                if actor.clock.monotonic() > give_up_at:
                    actor.history.violate(f"after healing, {self._topic}: {why}")
                    return
                await actor.clock.sleep(_POLL_SECONDS)
        await self._read_all()

    def _instance(self, client: Client) -> Instance:
        self._instances += 1
        name = f"{self._actor.name}.{self._instances}"
        return Instance(self._actor, client, self._actor.name, name)

    async def _replace(self) -> None:
        """Delete the topic and create it. A broker that does not know it yet may leave it."""
        actor = self._actor
        if await actor.persist(lambda: actor.client.replace_topic(self._topic, PARTITIONS)):
            actor.history.births[self._topic] += 1

    async def _transact(self, instance: Instance) -> None:
        actor = self._actor
        for _ in range(actor.random.randint(1, _TRANSACTIONS_MAX)):
            operation = actor.history.invoke(actor.name, "transaction")
            others = actor.random.random() < _OTHERS_PROBABILITY
            try:
                await self._write(instance, operation, with_others=others)
                if actor.random.random() < _OFFSETS_PROBABILITY:
                    await self._commit_offsets(instance)
            except ProducerFenced:
                actor.history.fail(operation, "fenced")
                return
            except MustAbort as error:
                if not await instance.abort(operation, error):
                    return
                continue
            if not await end(instance, operation):
                return

    async def _write(self, instance: Instance, operation: Operation, *, with_others: bool) -> None:
        """Begin, and send to all partitions."""
        actor, producer = self._actor, instance.producer
        producer.begin()
        sending = []
        for key in self._keys():
            (value,) = instance.fresh(1)
            operation.sends.append(Send(key, value))
            record = new_record(value, 0, actor.clock.time_ms())
            sending.append(producer.send(self._topic, key.partition, [record]))
        if with_others:
            key = actor.random.choice(actor.settings.keys)
            (text,) = instance.fresh(1)
            value = actor.settings.value(actor.random, key, text)
            sending.append(instance.send(operation, key, [value]))  # type: ignore[arg-type]
        results = await asyncio.gather(*sending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _commit_offsets(self, instance: Instance) -> None:
        self._offsets += 1
        offset = offset_of(self._births, self._offsets)
        offsets = {Place(self._topic, number): offset for number in range(PARTITIONS)}
        await instance.producer.send_offsets(REBORN_GROUP, offsets)

    @property
    def _births(self) -> int:
        """How often the topic was created, as far as its clients know."""
        return self._actor.history.births[self._topic]

    def _keys(self) -> list[Key]:
        """The history's names of the partitions: each creation gets new ones."""
        history = self._actor.history
        keys = [Key(f"{self._topic}#{self._births}", number) for number in range(PARTITIONS)]
        history.deleted.update(keys)
        return keys

    # --- the audit ---

    async def _unstable(self) -> str:
        """The transactions that are open."""
        client = self._actor.client
        for number in range(PARTITIONS):
            key = Key(self._topic, number)
            try:
                stable = await client.end_offset(key, "read_committed")
                last = await client.end_offset(key, "read_uncommitted")
            except (FetchRefused, NoAnswer) as error:
                client.forget()
                return error_text(error)
            if stable < last:
                return f"{key} is stable up to {stable} of {last} only"
        return ""

    async def _wrong_offsets(self, client: Client, has_written: bool) -> str:
        """The offsets of topics that were deleted, and those that the last transaction committed
        and that are not there."""
        try:
            found = await committed_offsets(client, REBORN_GROUP)
        except (RequestFailed, RequestRefused) as error:
            return error_text(error)
        mine = {place: offset for place, offset in found.items() if place.topic == self._topic}
        old = old_offsets(mine, self._births)
        if old:
            return f"{old} are offsets of a topic that was deleted"
        if has_written and len(mine) < PARTITIONS:
            return f"only {mine} are left of the committed offsets"
        return ""

    async def _transact_at_rest(self, client: Client) -> bool:
        """Whether a transaction on the topic and its offsets was committed."""
        actor = self._actor
        instance = self._instance(client)
        if not await instance.initialise():
            return False
        operation = actor.history.invoke(actor.name, "transaction")
        try:
            await self._write(instance, operation, with_others=False)
            await self._commit_offsets(instance)
        except ProducerFenced:
            actor.history.fail(operation, "fenced")
        except MustAbort as error:
            await instance.abort(operation, error)
        else:
            await instance.commit(operation)
        return operation.outcome is Outcome.OK

    async def _read_all(self) -> None:
        """Read all values of the newest topic. The last transaction wrote one to each partition."""
        actor = self._actor
        shown: Counter[str] = Counter()
        for number in range(PARTITIONS):
            shown.update(await self._values(Key(self._topic, number)))
        operations = list(self._operations())
        for text in wrong_values(operations, shown):
            actor.history.violate(text)
        last = operations[-1]
        missing = [send.value for send in last.sends if not shown[send.value]]
        if missing:
            actor.history.violate(f"{missing} of {last} are not seen in {self._topic}")

    async def _values(self, key: Key) -> list[str]:
        actor = self._actor
        found: list[str] = []
        position = 0
        end_offset = await actor.persist(lambda: actor.client.end_offset(key))
        while position < end_offset:
            (fetched,) = await actor.persist(
                partial(actor.client.fetch, {key: position}, "read_committed", 0.1)
            )
            found += [value for _, value in fetched.records]
            position = fetched.next_offset
        return found

    def _operations(self) -> Iterator[Operation]:
        for operation in self._actor.history.operations:
            if any(send.key.topic.startswith(f"{self._topic}#") for send in operation.sends):
                yield operation
