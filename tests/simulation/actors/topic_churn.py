"""Topics that are created and deleted again and again under one name."""

from __future__ import annotations

from functools import partial

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.log_client import NoAnswer, OutgoingBatch, RequestRefused
from tests.simulation.rules.history import Key, Poll, Send


class TopicChurn:
    """Creates a topic, writes, reads, deletes it, and begins again under the same name. No topic
    may ever show records of an earlier topic of its name."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._generation = 0

    async def run(self) -> None:
        """Go on until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            self._generation += 1
            await actor.persist(lambda: actor.client.create_topic(self._topic, 1, {}))
            for number in range(actor.random.randint(0, 3)):
                await self._send(number)
                await actor.pause(actor.settings.pause_seconds_mean)
            await self._read()
            await actor.persist(lambda: actor.client.delete_topic(self._topic))
            actor.history.deleted.add(self._key)
            await actor.pause(4 * actor.settings.pause_seconds_mean)

    @property
    def _topic(self) -> str:
        name = self._actor.name
        return name if self._actor.settings.reuses_names else f"{name}-{self._generation}"

    @property
    def _key(self) -> Key:
        """The history's name of the topic: each creation gets a new one."""
        return Key(f"{self._actor.name}#{self._generation}", 0)

    async def _send(self, number: int) -> None:
        actor = self._actor
        value = f"{actor.name}/{self._generation}/{number}"
        operation = actor.history.invoke(actor.name, "send", [Send(self._key, value)])
        try:
            batch = OutgoingBatch(Key(self._topic, 0), (value,))
            operation.sends[0].offset = await actor.client.produce(batch)
        except (RequestRefused, NoAnswer) as error:
            actor.history.unknown(operation, error_text(error))
        else:
            actor.history.ok(operation)

    async def _read(self) -> None:
        actor, key = self._actor, Key(self._topic, 0)
        actor.history.assign(actor.name)
        position = end = 0
        while position == 0 or position < end:
            operation = actor.history.invoke(actor.name, "poll")
            try:
                (answer,) = await actor.client.fetch({key: position}, "read_committed", 0.1)
            except (RequestRefused, NoAnswer) as error:
                actor.history.fail(operation, error_text(error))
                await actor.backoff(2)
                continue
            if answer.out_of_range:
                actor.history.violate(f"{self._key} does not reach to {position} any more")
                actor.history.fail(operation, "out of range")
                return
            end = answer.high_watermark
            operation.polls = [
                Poll(self._key, position, answer.next_offset, answer.records, high_watermark=end)
            ]
            actor.history.ok(operation)
            position = answer.next_offset
            if end == 0:
                return


class WideTopics:
    """Creates topics of many partitions without records, and deletes them again."""

    def __init__(self, actor: Actor, partitions_max: int, topics_max: int) -> None:
        self._actor = actor
        self._partitions_max = partitions_max
        self._topics_max = topics_max
        self._topics: list[str] = []
        self._created = 0

    async def run(self) -> None:
        """Go on until the run is ending; the last topics stay."""
        actor = self._actor
        while not actor.stopping.is_set():
            if len(self._topics) < self._topics_max:
                self._created += 1
                name = f"{actor.name}-{self._created}"
                count = actor.random.randint(1, self._partitions_max)
                await actor.persist(partial(actor.client.create_topic, name, count, {}))
                self._topics.append(name)
            else:
                name = self._topics.pop(actor.random.randrange(len(self._topics)))
                await actor.persist(partial(actor.client.delete_topic, name))
            await actor.pause(20 * actor.settings.pause_seconds_mean)
