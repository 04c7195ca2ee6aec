"""The instant of a copy: a moment at which the ends of all logs are known. Pure.

A bucket's logs cannot be read all at once. So the copier learns their ends one after the other, and
then looks at all of them again, together. If none has grown, all ended there at the moment at which
the look began: each end was known before it, and was still absent after it. Slots that were on
their way are not below an end, so nothing in them was acknowledged.

The logs of a copy that ends there are those of a bucket whose brokers were all killed at that
instant. Every effect that they hold has its cause in them, in other WALs and at clients too: a
marker its Prepare, a committed offset its records (H2, H3). `tests/models/bucket_copy.py` explores
this, and the orders that go wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import FIRST_SLOT, Incarnation, Slot
from tidelog.wal.format.object_format import HEADER_BYTES, wal_key


class Instant(NamedTuple):
    """The logs of a bucket at one moment."""

    state: ClusterState
    """By the metadata log's last entry."""
    ends: Mapping[Incarnation, Slot]
    """The first slot behind the durable ones, of each incarnation that is not retired."""
    time_ms: int
    """The copier's clock, when the look began; for people."""
    looks: int = 1


class Ends:
    """The ends of the metadata log and of the WALs that may grow, as far as they are learnt."""

    def __init__(self, state: ClusterState, floors: Mapping[Incarnation, Slot]) -> None:
        """`floors`: of WALs with a checkpoint. No slot below is replayed."""
        self._floors = floors
        self._ends: dict[Incarnation, Slot] = {}
        self._sealed: set[Incarnation] = set()
        self.state = state
        self.follow(state)

    def follow(self, state: ClusterState) -> None:
        """Take a newer state: incarnations have come, or are retired."""
        self.state = state
        self._ends = {
            info.incarnation: self._ends.get(
                info.incarnation, self._floors.get(info.incarnation, FIRST_SLOT)
            )
            for info in state.brokers.values()
        }

    @property
    def growing(self) -> list[Incarnation]:
        """The incarnations whose WAL has no seal at its end yet."""
        return [owner for owner in self._ends if owner not in self._sealed]

    def end(self, owner: Incarnation) -> Slot:
        """The first slot of a WAL that is not known to hold data."""
        return self._ends[owner]

    def extend(self, owner: Incarnation, slots: Iterable[tuple[Slot, int]]) -> None:
        """Take what a listing from the end on has: slots, ascending, and their sizes."""
        for slot, size_bytes in slots:
            if slot != self._ends[owner]:
                break
            if size_bytes == HEADER_BYTES:
                self._sealed.add(owner)
                break
            self._ends[owner] = Slot(slot + 1)

    @property
    def next_entry(self) -> int:
        """The first entry of the metadata log that is not known."""
        return self.state.sequence + 1

    def next_slots(self) -> dict[str, Incarnation]:
        """The keys of the slots at the ends that may move.

        If they are all absent, and `next_entry` too, the present ends are those of one instant.
        """
        return {wal_key(owner, self._ends[owner]): owner for owner in self.growing}

    def instant(self, present: Collection[str], time_ms: int, looks: int) -> Instant | None:
        """The instant at which a look began; None if it found any of the next objects."""
        if present:
            return None
        return Instant(self.state, dict(self._ends), time_ms, looks)
