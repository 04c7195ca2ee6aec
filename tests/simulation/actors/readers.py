"""Readers: consumers, observers of the high watermark, and the last reader, which reads
everything."""

from __future__ import annotations

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.log_client import Fetched, NoAnswer, RequestRefused
from tests.simulation.rules.history import Isolation, Key, Poll


class Consumer:
    """Reads some partitions on and on. Now and then it takes other partitions, from other
    positions."""

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
            await actor.pause(actor.settings.consume_pause_seconds_mean)
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
    """Asks brokers for the end of a partition. No answer may be lower than an earlier one."""

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
                actor.history.fail(operation, error_text(error))
            else:
                host = actor.client.offset_host
                operation.polls = [Poll(key, end, end, [], "read_uncommitted", end, host=host)]
                actor.history.ok(operation)
            await actor.pause(actor.settings.pause_seconds_mean)


async def read_once(
    actor: Actor,
    positions: dict[Key, int],
    isolation: Isolation,
    wait_seconds: float,
    final: bool = False,
) -> list[Fetched]:
    """Make one fetch, recorded as one operation, and advance the positions. If a log begins behind
    its position, move there."""
    operation = actor.history.invoke(actor.name, "poll", final=final)
    try:
        answers = await actor.client.fetch(dict(positions), isolation, wait_seconds)
    except (RequestRefused, NoAnswer) as error:
        actor.history.fail(operation, error_text(error))
        raise
    found = [fetched for fetched in answers if not fetched.out_of_range]
    for fetched in found:
        operation.polls.append(
            Poll(
                fetched.key,
                positions[fetched.key],
                fetched.next_offset,
                fetched.records,
                isolation,
                fetched.high_watermark,
                fetched.last_stable_offset,
                fetched.log_start,
                fetched.host,
            )
        )
        positions[fetched.key] = fetched.next_offset
    actor.history.ok(operation)
    for fetched in answers:
        if fetched.out_of_range:
            await _begin_again(actor, positions, fetched.key, isolation, final)
    return found


async def _begin_again(
    actor: Actor, positions: dict[Key, int], key: Key, isolation: Isolation, final: bool
) -> None:
    """Move to the log's start, since the log no longer has the position."""
    operation = actor.history.invoke(actor.name, "poll", final=final)
    try:
        start = await actor.client.log_start(key)
    except (RequestRefused, NoAnswer) as error:
        actor.history.fail(operation, error_text(error))
        raise
    policy = actor.settings.policies.get(key.topic)
    if policy is None or not policy.trims or start <= positions[key]:
        actor.history.violate(
            f"{actor.name}: {positions[key]} of {key} is out of range, and the log begins at"
            f" {start}"
        )
    host = actor.client.offset_host
    operation.polls.append(Poll(key, start, start, [], isolation, log_start=start, host=host))
    actor.history.ok(operation)
    positions[key] = start


async def read_everything(actor: Actor) -> None:
    """The final read: each partition from its beginning to its end, when all faults are healed."""
    positions = dict.fromkeys(actor.settings.all_keys, 0)
    ends = {
        key: await actor.persist(lambda key=key: actor.client.end_offset(key))  # type: ignore[misc]
        for key in actor.settings.all_keys
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
