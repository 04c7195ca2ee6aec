"""The brokers that leave the cluster, and how long answers about leaders wait for their end.

A client asks for metadata as soon as its connection to a broker breaks. At that moment the answer
would still name the dead leader. Clients ask again only after a pause: librdkafka after up to a
second. So the answer waits until the broker is known to live, or others lead its partitions.

A client that does not find a broker in the list of metadata drops it. If librdkafka drops a broker
while it moves that broker's partitions to the new leader, the partitions stay without a leader for
another second. So metadata lists a dead broker for some seconds more, as the leader of nothing. It
does not list a broker that hangs: the client must drop that one, since it may wait for its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import BrokerFenced, IncarnationRetired, Record
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.identifiers import Epoch

WAIT_SECONDS_MAX: Final = 1.0
"""From the broken connection, or from the fence. The lease decides later than this."""
LISTED_SECONDS: Final = 10.0
"""After the fence, in the answers to Metadata."""


class Departure(NamedTuple):
    """A fenced incarnation, and when `Departures` learned of its fence."""

    info: BrokerInfo
    at: float
    is_dead: bool
    """Whether its connection broke before."""


class Departures:
    """What one broker knows of brokers that leave or may be dead."""

    def __init__(self, log: MetadataLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._broken: dict[Epoch, float] = {}
        self._fenced = [
            Departure(info, clock.monotonic(), is_dead=False)
            for info in log.state.fenced_not_retired()
        ]
        self._opening_since: float | None = None
        self._changed = asyncio.Event()
        log.subscribe(self._follow, BrokerFenced, IncarnationRetired)

    def connection_broke(self, epoch: Epoch) -> None:
        """The connection to a live incarnation broke: it may be dead."""
        self._broken[epoch] = self._clock.monotonic()

    def connected(self, epoch: Epoch) -> None:
        """There is a connection to this incarnation, or none is wanted any more."""
        if self._broken.pop(epoch, None) is not None:
            self._wake()

    def opening_began(self) -> None:
        """This broker has got partitions of a dead one, and opens them now."""
        self._opening_since = self._clock.monotonic()

    def opened(self) -> None:
        """This broker serves those of them that have traffic."""
        if self._opening_since is not None:
            self._opening_since = None
            self._wake()

    async def settled(self) -> None:
        """Wait until no live broker may be dead, none waits for a take-over, and this one has
        opened what it got. The others need about the same time for theirs.

        The wait ends WAIT_SECONDS_MAX after the last departure began, and after the call.
        """
        if not self._broken and not self._recent() and self._opening_since is None:
            return  # Every request for metadata asks: here is the short way.
        until = self._clock.monotonic() + WAIT_SECONDS_MAX
        while (seconds := min(until, self._last_end()) - self._clock.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    def listed(self) -> tuple[BrokerInfo, ...]:
        """The dead brokers that were fenced just now, unless their ids live again."""
        live = self._log.state.live_epochs
        newest = {each.info.broker_id: each.info for each in self._recent() if each.is_dead}
        return tuple([info for broker_id, info in newest.items() if broker_id not in live])

    def _recent(self) -> list[Departure]:
        since = self._clock.monotonic() - LISTED_SECONDS
        self._fenced = [each for each in self._fenced if each.at > since]
        return self._fenced

    def _last_end(self) -> float:
        """The time when answers wait no longer."""
        state = self._log.state
        begun = [at for epoch, at in self._broken.items() if state.is_live(epoch)]
        begun += [each.at for each in self._fenced if each.info.epoch in state.brokers]
        if self._opening_since is not None:
            begun.append(self._opening_since)
        return max(begun, default=-WAIT_SECONDS_MAX) + WAIT_SECONDS_MAX

    def _follow(self, _: int, records: Sequence[Record]) -> None:
        now, brokers = self._clock.monotonic(), self._log.state.brokers
        for record in records:
            if isinstance(record, BrokerFenced) and (info := brokers.get(record.epoch)) is not None:
                self._fenced.append(Departure(info, now, info.epoch in self._broken))
        if self._recent():
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
