"""The instant of a copy: a moment at which the ends of all logs are known. Pure.

The copier cannot read all logs of a bucket at once. So it learns their ends one after the other,
and then looks at all of them together. If no log has grown, all of them ended there when the look
began: the copier knew each end before, and the next object was still absent after. A slot in flight
is not below an end, so its records were not acknowledged.

Such a copy has the logs of a bucket whose brokers were all killed at that instant. Each effect in
the logs has its cause there, also across WALs and clients: a marker its Prepare, a committed offset
its records (H2, H3). `tests/models/bucket_copy.py` explores this, and the orders that go wrong.
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
    """The state after the metadata log's last entry."""
    ends: Mapping[Incarnation, Slot]
    """The first slot behind the durable ones, of each incarnation that is not retired."""
    time_ms: int
    """The copier's clock, when the look began; for people."""
    looks: int = 1


class Ends:
    """The known ends of the metadata log and of the WALs that may grow."""

    def __init__(self, state: ClusterState, floors: Mapping[Incarnation, Slot]) -> None:
        """`floors`: the newest checkpoints' slots, by WAL. No slot below them is replayed."""
        self._floors = floors
        self._ends: dict[Incarnation, Slot] = {}
        self._sealed: set[Incarnation] = set()
        self.state = state
        self.follow(state)

    def follow(self, state: ClusterState) -> None:
        """Take a newer state, with new or retired incarnations."""
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
        """The first slot of a WAL that may hold no data."""
        return self._ends[owner]

    def extend(self, owner: Incarnation, slots: Iterable[tuple[Slot, int]]) -> None:
        """Take a listing from the known end on: slots in order, with their sizes."""
        for slot, size_bytes in slots:
            if slot != self._ends[owner]:
                break
            if size_bytes == HEADER_BYTES:
                self._sealed.add(owner)
                break
            self._ends[owner] = Slot(slot + 1)

    @property
    def next_entry(self) -> int:
        """The first unknown entry of the metadata log."""
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
