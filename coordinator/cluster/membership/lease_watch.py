"""Decides by their leases which brokers are dead (rule B2). Pure.

Each broker watches the next three live brokers in the ring of ids. A watched broker is *silent*
when its lease and its entries in the metadata log have not changed for its session timeout. The
watcher fences it when all of these hold:

- no gap between two looks was longer than two heartbeats; a gap restarts the count;
- PUTs of the watcher's own lease succeeded all the time, with gaps up to two heartbeats, and one
  began after the broker was found silent. So the count restarts when an outage of the store ends;
- one heartbeat later the lease is still unchanged;
- it is the watcher's turn (below);
- the state on which the fence is appended shows no later entry of the broker (`Verdict.holds`).

The nearest living watcher acts first. The others wait longer, for a random time. So does a watcher
that finds several brokers silent: an outage of the store is then likelier than several deaths.

Brokers are fenced one at a time. After each fence in the metadata log, by any broker, every watcher
judges the other silent brokers anew: an own lease PUT, one heartbeat, a look. So a wrong view of
the store costs at most one broker a heartbeat, and a broker that comes back meanwhile stays.

If all three watched brokers are silent, the watcher looks at all leases until one of its next three
lives. It fences none before the living had the time to show themselves, since they get the
partitions. If all other live brokers are silent, it is alone. It then fences them one after the
other without judging anew: no other broker can, and none of them answers reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidelog.coordinator.cluster.log.leases import Lease, LeaseObservation
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import FIRST_SLOT, Epoch, Incarnation, Slot

WATCHED_BROKERS = 3
GAP_HEARTBEATS_MAX = 2
"""A longer gap between looks, or between renewals of the own lease, restarts the count."""
LATE_HEARTBEATS = 1.5
"""A living broker's lease changes earlier, as looks see it."""
HURRIED_LOOK_HEARTBEATS = 0.25
"""The pause to the next look when only the own lease's PUT or the own turn is awaited."""
REPEATED_LOOK_HEARTBEATS = 0.5
"""The pause to the next look if a lease could not be read: one failure makes no gap."""
ROUNDING_SECONDS = 0.001
"""A look comes this much later than it is due: sums of times are not exact."""

Uniform: TypeAlias = Callable[[float, float], float]
"""Draws a number between two bounds."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """A successful PUT of the own lease, by the own monotonic clock."""

    started_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class Look:
    """One round of reads. A lease that could not be read is not in `leases`; None is no lease."""

    asked_at: float
    answered_at: float
    leases: Mapping[Epoch, Lease | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """An incarnation is to be fenced, if the newest state still allows it."""

    dead: BrokerInfo
    last_entry: int
    """Its newest entry that the watcher knew when it looked last."""
    durable_end: Slot
    """Its WAL's durable end by its last lease (rule C10)."""
    live: frozenset[Epoch]
    """The live incarnations by which it was judged."""
    alone: bool
    """Whether all other live incarnations are silent."""

    def holds(self, state: ClusterState) -> bool:
        """False if it is fenced, has written an entry, or another incarnation was fenced since."""
        present = state.brokers.get(self.dead.epoch)
        if present is None or present.fenced or present.last_entry != self.last_entry:
            return False
        return self.alone or all(state.is_live(epoch) for epoch in self.live)

    def records(self, state: ClusterState) -> tuple[BrokerFenced, ...]:
        """The fence, as a change of this state; nothing if the verdict does not hold any more."""
        return (BrokerFenced(self.dead.epoch, self.durable_end),) if self.holds(state) else ()


@dataclass(frozen=True, slots=True)
class _Watch:
    """One watched incarnation."""

    info: BrokerInfo
    observation: LeaseObservation
    asked_at: float
    """The last look that read its lease."""
    durable_end: Slot = FIRST_SLOT
    silent_since: float | None = None
    """The answer by which it was found silent, or the last fence since then."""
    turn_at: float | None = None
    """The watcher may fence it from now on; None before all other conditions were met."""

    @classmethod
    def begin(cls, info: BrokerInfo, asked_at: float) -> _Watch:
        return cls(info, LeaseObservation(info.epoch), asked_at)

    @property
    def is_silent(self) -> bool:
        """Whether it looks dead."""
        return self.silent_since is not None

    @property
    def is_alive(self) -> bool:
        """Whether it was seen to change, and is not silent since."""
        return not self.is_silent and self.observation.signs_of_life > 0

    def observed(self, info: BrokerInfo, lease: Lease | None, look: Look) -> _Watch:
        seen = self.observation.observed(lease, info.last_entry, look.asked_at, look.answered_at)
        told = self.durable_end
        if lease is not None and lease.epoch == info.epoch:
            told = max(told, lease.wal.durable_end)
        watch = replace(self, info=info, observation=seen, asked_at=look.asked_at, durable_end=told)
        if seen.unchanged_seconds < info.session_timeout_ms / 1000:
            return replace(watch, silent_since=None, turn_at=None)
        since = look.answered_at if self.silent_since is None else self.silent_since
        return replace(watch, silent_since=since)

    def confirmed_again(self, now: float) -> _Watch:
        """The watch after another fence: silent, but to be confirmed again."""
        return replace(self, silent_since=now, turn_at=None) if self.is_silent else self


class LeaseWatch:
    """One broker's watch over the others. The caller reads leases, and appends the fences."""

    def __init__(self, me: Incarnation, heartbeat_seconds: float) -> None:
        self._me = me
        self._heartbeat_seconds = heartbeat_seconds
        self._gap_seconds_max = GAP_HEARTBEATS_MAX * heartbeat_seconds
        self._watches: dict[Epoch, _Watch] = {}
        self._live: frozenset[Epoch] = frozenset()
        self._all_watched_since: float | None = None
        self._is_unread = False
        """Whether the last look could not read some lease."""

    @property
    def silent(self) -> frozenset[Epoch]:
        """The watched incarnations that look dead."""
        return frozenset([epoch for epoch, watch in self._watches.items() if watch.is_silent])

    @property
    def doubtful(self) -> frozenset[Epoch]:
        """The watched incarnations whose leases are late: they get no partitions."""
        late_seconds = LATE_HEARTBEATS * self._heartbeat_seconds
        return frozenset(
            [
                epoch
                for epoch, watch in self._watches.items()
                if watch.observation.unchanged_seconds >= late_seconds
            ]
        )

    def watched(self, state: ClusterState) -> tuple[BrokerInfo, ...]:
        """The incarnations whose leases the next look reads, in the order of the ring."""
        others = ring_after(self._me, state)
        return others if self._all_watched_since is not None else others[:WATCHED_BROKERS]

    def observed(
        self, state: ClusterState, look: Look, renewal: Renewal | None, uniform: Uniform
    ) -> Verdict | None:
        """The incarnation to fence now, after one more look.

        `renewal`: the last successful PUT of the own lease.
        """
        live = frozenset(state.live_epochs.values())
        another_fenced = not self._live <= live
        self._live = live
        watched = self.watched(state)
        self._is_unread = any(info.epoch not in look.leases for info in watched)
        if renewal is None or look.asked_at - renewal.answered_at > self._gap_seconds_max:
            # The store does not take the own lease either, so silence proves nothing.
            self._watches.clear()
            self._all_watched_since = None
            return None
        self._watches = {
            info.epoch: watch for info in watched if (watch := self._after(info, look)) is not None
        }
        others = ring_after(self._me, state)
        self._widen_or_narrow(others, look.asked_at)
        alone = all(info.epoch in self.silent for info in others)
        if another_fenced and not alone:
            self._watches = {
                epoch: watch.confirmed_again(look.answered_at)
                for epoch, watch in self._watches.items()
            }
        self._take_turns(others, look.asked_at, renewal, uniform)
        for watch in self._watches.values():
            # A look that could not read the lease does not show that it is still unchanged.
            if watch.turn_at is not None and watch.turn_at <= look.asked_at == watch.asked_at:
                last_entry = watch.observation.last_entry
                return Verdict(watch.info, last_entry, watch.durable_end, live, alone)
        return None

    def next_read_at(self, look: Look) -> float:
        """When to look again after this look; earlier than a heartbeat if a decision is due."""
        heartbeat = self._heartbeat_seconds
        due = [look.asked_at + heartbeat]
        if self._all_watched_since == look.asked_at:
            due.append(look.asked_at)
        if self._is_unread:
            due.append(look.asked_at + REPEATED_LOOK_HEARTBEATS * heartbeat)
        for watch in self._watches.values():
            if watch.asked_at != look.asked_at:
                continue
            if watch.turn_at is not None:
                due.append(watch.turn_at)
            elif watch.silent_since is not None:
                due.append(max(watch.silent_since + heartbeat, self._turns_begin_at()))
            else:
                due.append(watch.observation.since + watch.info.session_timeout_ms / 1000)
        hurried = look.asked_at + HURRIED_LOOK_HEARTBEATS * heartbeat
        return max(min(due) + ROUNDING_SECONDS, hurried)

    def _after(self, info: BrokerInfo, look: Look) -> _Watch | None:
        """The watch of one incarnation after the look; None before its lease was read."""
        watch = self._watches.get(info.epoch)
        if info.epoch not in look.leases:
            return watch
        if watch is None or look.asked_at - watch.asked_at > self._gap_seconds_max:
            watch = _Watch.begin(info, look.asked_at)
        return watch.observed(info, look.leases[info.epoch], look)

    def _widen_or_narrow(self, others: Sequence[BrokerInfo], now: float) -> None:
        """Watch all brokers from when the next three are silent until one of them is known to live.

        A broker that has just come into the watch is neither silent nor known to live.
        """
        near = [self._watches.get(info.epoch) for info in others[:WATCHED_BROKERS]]
        if len(others) <= WATCHED_BROKERS or any(watch and watch.is_alive for watch in near):
            self._all_watched_since = None
        elif self._all_watched_since is None and all(watch and watch.is_silent for watch in near):
            self._all_watched_since = now

    def _turns_begin_at(self) -> float:
        """While all are watched: the time by which each living broker has changed its lease."""
        since = self._all_watched_since
        return -math.inf if since is None else since + self._gap_seconds_max

    def _take_turns(
        self, others: Sequence[BrokerInfo], now: float, renewal: Renewal, uniform: Uniform
    ) -> None:
        """Give a turn to each silent incarnation that meets the other conditions."""
        heartbeat = self._heartbeat_seconds
        several = len(self.silent) > 1
        living = 0
        if now < self._turns_begin_at():
            return
        for info in others:
            watch = self._watches.get(info.epoch)
            if watch is None or watch.silent_since is None:
                living += 1
                continue
            confirmed = (
                watch.asked_at == now
                and now >= watch.silent_since + heartbeat
                and renewal.started_at >= watch.silent_since
            )
            if confirmed and watch.turn_at is None:
                delay = living * heartbeat / 2
                if living or several:
                    delay += uniform(0, heartbeat)
                self._watches[info.epoch] = replace(watch, turn_at=now + delay)


def ring_after(me: Incarnation, state: ClusterState) -> tuple[BrokerInfo, ...]:
    """The live incarnations of other ids, from the next id on and around the ring."""
    others = [info for info in state.live_brokers() if info.broker_id != me.broker_id]
    return tuple(sorted(others, key=lambda info: (info.broker_id < me.broker_id, info.broker_id)))
