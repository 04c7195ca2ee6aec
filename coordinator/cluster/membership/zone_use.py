"""From which zones the partitions of coordinators are used. Pure.

The owner counts the requests for each of its coordinators by the client's zone. Counts decay, so
that they follow clients that move. A zone is *wanted* if most requests come from it, and if they
are many. Both bounds are hysteresis: a coordinator that moved is wanted elsewhere only when a third
of the requests has moved on, and its new owner counts from nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tidelog.identifiers import TopicPartition

HALF_LIFE_SECONDS: Final = 300.0
USES_MIN: Final = 100.0
"""Fewer requests, decayed, prove nothing: a heartbeat every 3 s comes to about 144."""
SHARE_MIN: Final = 2 / 3
ZONES_MAX: Final = 8
"""The zones that are counted for a partition: clients choose the names. The least used goes."""
ZONE_LENGTH_MAX: Final = 128
"""A longer name counts as none."""


class ZoneUse:
    """Counts uses by partition and zone; its size is bounded by the partitions that are kept."""

    def __init__(self) -> None:
        self._uses: dict[TopicPartition, dict[str | None, float]] = {}
        self._decayed_at: float | None = None

    def note(self, place: TopicPartition, zone: str | None) -> None:
        """Count a request for a partition's coordinator. None: the client names no zone."""
        if zone is not None and len(zone) > ZONE_LENGTH_MAX:
            zone = None
        uses = self._uses.setdefault(place, {})
        if zone not in uses and len(uses) > ZONES_MAX:
            del uses[min(uses, key=lambda each: uses[each])]
        uses[zone] = uses.get(zone, 0.0) + 1.0

    def counted(self, place: TopicPartition) -> int:
        """How many zones are counted for a partition."""
        return len(self._uses.get(place, ()))

    def wanted(
        self, places: Collection[TopicPartition], now: float
    ) -> Mapping[TopicPartition, str]:
        """The zones from which these partitions are mostly used; forgets all other partitions."""
        self._decay(now)
        self._uses = {place: self._uses[place] for place in places if place in self._uses}
        found = {}
        for place, uses in self._uses.items():
            total = sum(uses.values())
            zone = max(uses, key=lambda each: uses[each])
            if zone is not None and total >= USES_MIN and uses[zone] >= SHARE_MIN * total:
                found[place] = zone
        return found

    def _decay(self, now: float) -> None:
        since = 0.0 if self._decayed_at is None else now - self._decayed_at
        self._decayed_at = now
        factor = 0.5 ** (max(0.0, since) / HALF_LIFE_SECONDS)
        for uses in self._uses.values():
            for zone in uses:
                uses[zone] *= factor
