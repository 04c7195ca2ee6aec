"""The environment of a simulated client: its library, clock, chance and the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tests.simulation.actors.log_client import LogClient, NoAnswer, RequestRefused
from tests.simulation.policies import TopicPolicy
from tests.simulation.rules.history import GroupProtocol, History, Key
from tests.simulation.values import keyed
from tidelog.bucket.views.bucket import Bucket
from tidelog.client.errors import RequestFailed
from tidelog.client.errors import RequestRefused as Refusal
from tidelog.client.pool import Client
from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.protocol.error_codes import error_name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """The load of one run. Seconds are virtual."""

    keys: tuple[Key, ...]
    producers: int = 2
    plain_producers: int = 1
    consumers: int = 2
    observers: int = 2
    topic_churns: int = 1
    wide_topics: int = 0
    """The maximum number of topics with many partitions and without records."""
    reuses_names: bool = True
    """Whether a topic may get the name of a deleted one. With several brokers, one of them may
    still know the old topic, and acknowledge records of it."""
    reborn_topics: tuple[str, ...] = ()
    """Topics that are deleted and created again under their names beside transactions."""
    pause_seconds_mean: float = 0.25
    records_max: int = 4
    padding_bytes_max: int = 2000
    group_readers: int = 0
    """Members of a group of the classic protocol. One more reader has a group to itself."""
    consumer_readers: int = 0
    """Members of a group of the consumer protocol (KIP-848)."""
    transfers: int = 0
    """Transactional ids, each used by two competing instances."""
    transformers: int = 0
    inputs: tuple[Key, ...] = ()
    """The partitions that transformers read."""
    derived: tuple[Key, ...] = ()
    """The partitions that they write."""
    transform_protocol: GroupProtocol = "classic"
    """The protocol of the transformers' group."""
    transaction_versions: tuple[int, ...] = (1, 2)
    """The versions of the transaction protocol that instances may speak."""
    delivery_seconds_max: float = 40.0
    fetch_wait_seconds: float = 0.5
    consume_pause_seconds_mean: float = 0.03
    reassign_probability: float = 0.02
    forget_probability: float = 0.05
    policies: Mapping[str, TopicPolicy] = field(default_factory=dict)
    """The policies by which topics may lose records. All other topics lose none."""
    viewers: int = 0
    """Readers of the bucket without a broker."""
    inspectors: int = 0
    sink_drivers: int = 0
    """Drivers of one exactly-once sink, all at once."""
    sunk: tuple[Key, ...] = ()
    """The partitions that the sink writes."""

    @property
    def all_keys(self) -> tuple[Key, ...]:
        """Every partition that is read at the end."""
        return self.keys + self.derived + self.sunk

    @property
    def trimmed_keys(self) -> tuple[Key, ...]:
        """The partitions of which clients ask that records be deleted."""
        return tuple(
            key
            for key in self.all_keys
            if key.topic in self.policies and self.policies[key.topic].is_trimmed
        )

    def value(self, chance: random.Random, key: Key, text: str) -> str:
        """A value for this partition, made of a unique text."""
        policy = self.policies.get(key.topic)
        return keyed(text, chance) if policy is not None and policy.compacts else text


@dataclass(slots=True)
class Actor:
    """The environment of a client's code."""

    name: str
    client: LogClient
    clock: Clock
    random: random.Random
    history: History
    settings: WorkloadSettings
    stopping: asyncio.Event
    """No client writes any more."""
    closing: asyncio.Event
    """Everything was consumed: groups may be left."""
    entropy: Entropy
    kafka: Callable[[], Client]
    """A client of Tidelog's own library, beside the one that has single requests only."""
    bucket: Callable[[], Bucket]
    """The bucket, to be read without a broker, as a new reader that knows nothing of it."""

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


def error_text(error: Exception) -> str:
    """The name under which an error is counted."""
    if isinstance(error, RequestRefused):
        return error.name
    if isinstance(error, Refusal):
        return error_name(error.code)
    if isinstance(error, RequestFailed):
        return f"no answer: {error.why}"
    return f"no answer: {error}"
