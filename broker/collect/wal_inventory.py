"""The slots of WALs that may lie in the bucket, as far as one process collects them.

A WAL is a row of consecutive slots. So this process knows its own slots without a listing: all
durable ones, less those handed to the deleter. It lists each dead incarnation's WAL of its share
once; many in one listing. They do not grow any more. When all slots of such a WAL except the seal
are handed over, the process drops it. (The next process finds a put that comes even later, behind
the seal.)

Memory is in proportion to the gaps between slots: to kept slots, not to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.bucket.object_keys import WAL_FOLDER, WalObject, parse_key
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Incarnation, Slot
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.format.object_format import wal_key, wal_prefix
from tidelog.wal.recover.slot_runs import SlotRun, extended, without

LISTED_ONE_BY_ONE_MAX: Final = 16
"""Dead WALs that a look lists one by one; of more it lists the whole folder."""


class WalRuns(NamedTuple):
    """Slots of one WAL."""

    runs: list[SlotRun]
    slot_bytes: int
    """The approximate size of a slot."""


class OwnWal(NamedTuple):
    """The progress of this process's WAL."""

    durable_end: Slot
    newest_slot: Slot
    """No slot above this one was put yet."""
    size_bytes: int
    """The size of all durable slots."""


@dataclass(slots=True)
class _ListedWal:
    end: Slot | None
    """The seal's slot; None if the metadata log did not name it at that time."""
    runs: list[SlotRun] = field(default_factory=list)
    slots: int = 0
    size_bytes: int = 0

    def add(self, slot: Slot, size_bytes: int) -> None:
        if self.runs and self.runs[-1].end == slot:
            self.runs[-1] = SlotRun(self.runs[-1].first, slot + 1)
        else:
            self.runs.append(SlotRun(slot, slot + 1))
        self.slots += 1
        self.size_bytes += size_bytes

    @property
    def is_finished(self) -> bool:
        """Whether only the seal is left, which stays for ever."""
        end = self.end
        return end is not None and not without(self.runs, [SlotRun(end, end + 1)])


class WalInventory:
    """The slots that this process collects. Iteration yields each WAL with its runs."""

    def __init__(
        self, store: ObjectStore, incarnation: Incarnation, own: Callable[[], OwnWal]
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._own = own
        self._own_runs: list[SlotRun] = []
        self._own_end = Slot(0)
        self._dead: dict[Incarnation, _ListedWal] = {}
        self._newest: dict[Incarnation, Slot] = {}
        """The newest slots of live WALs of other processes."""
        self._finished: set[Epoch] = set()

    async def look(self, state: ClusterState, dead: Collection[Incarnation]) -> None:
        """Update the inventory of the own WAL and of these dead incarnations' WALs.

        Raises StoreError.
        """
        durable_end = self._own().durable_end
        self._own_runs = extended(self._own_runs, durable_end, self._own_end)
        self._own_end = durable_end
        wanted = {owner: end for owner, end in self._dead_incarnations(state) if owner in dead}
        self._dead = {owner: known for owner, known in self._dead.items() if owner in wanted}
        unknown = [owner for owner in wanted if owner not in self._dead]
        if len(unknown) > LISTED_ONE_BY_ONE_MAX:
            await self._list_all(state, {owner: _ListedWal(wanted[owner]) for owner in unknown})
        for owner, end in wanted.items():
            known = self._dead.get(owner)
            if owner.epoch not in self._finished and (known is None or known.end != end):
                self._keep(owner, await self._list(owner, end))

    async def newest_slots(self, state: ClusterState) -> dict[Incarnation, Slot]:
        """The highest slot of each WAL that may have been put by now. Raises StoreError."""
        found = {wal.incarnation: wal.end_slot for wal in state.retired.values()}
        for info in state.brokers.values():
            owner = info.incarnation
            if owner == self._incarnation:
                found[owner] = self._own().newest_slot
                continue
            known = self._newest.get(owner)
            after = "" if known is None else wal_key(owner, known)
            async for meta in self._store.list(wal_prefix(owner), after):
                slot = parse_key(meta.key)
                if isinstance(slot, WalObject):
                    known = slot.slot
            if known is not None:
                self._newest[owner] = found[owner] = known
        return found

    def __iter__(self) -> Iterator[tuple[Incarnation, WalRuns]]:
        own = self._own()
        mean = own.size_bytes // max(1, own.durable_end)
        yield self._incarnation, WalRuns(self._own_runs, mean)
        for owner, listed in self._dead.items():
            yield owner, WalRuns(listed.runs, listed.size_bytes // max(1, listed.slots))

    def hand_over(self, owner: Incarnation, runs: Iterable[SlotRun]) -> None:
        """Remove slots that the deleter gets."""
        if owner == self._incarnation:
            self._own_runs = without(self._own_runs, list(runs))
            return
        listed = self._dead[owner]
        listed.runs = without(listed.runs, list(runs))
        self._keep(owner, listed)

    def _keep(self, owner: Incarnation, listed: _ListedWal) -> None:
        if listed.is_finished:
            self._finished.add(owner.epoch)
            self._dead.pop(owner, None)
        else:
            self._dead[owner] = listed

    def _dead_incarnations(self, state: ClusterState) -> Iterator[tuple[Incarnation, Slot | None]]:
        for epoch, wal in state.retired.items():
            if epoch not in self._finished:
                yield wal.incarnation, wal.end_slot
        for info in state.fenced_not_retired():
            yield info.incarnation, None

    async def _list_all(self, state: ClusterState, dead: Mapping[Incarnation, _ListedWal]) -> None:
        after = ""
        while True:
            async for meta in self._store.list(WAL_FOLDER, start_after=after):
                found = parse_key(meta.key)
                if not isinstance(found, WalObject):
                    continue
                owner = found.incarnation
                if state.is_live(owner.epoch) or owner.epoch > state.sequence:
                    # A key after all of its slots: "0" follows "/".
                    after = f"{wal_prefix(owner)[:-1]}0"
                    break
                # Of an incarnation that the metadata log has forgotten only the seal is left.
                if owner in dead:
                    dead[owner].add(found.slot, meta.size)
            else:
                break
        for owner, listed in dead.items():
            self._keep(owner, listed)

    async def _list(self, owner: Incarnation, end: Slot | None) -> _ListedWal:
        listed = _ListedWal(end)
        async for meta in self._store.list(wal_prefix(owner)):
            found = parse_key(meta.key)
            if isinstance(found, WalObject):
                listed.add(found.slot, meta.size)
        return listed
