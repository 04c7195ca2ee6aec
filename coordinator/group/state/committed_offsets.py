"""Committed offsets of all groups of one coordinator, and pending ones of open transactions.

Pure; only records change them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from tidelog.coordinator.group.records.log_records import (
    NO_TIMESTAMP,
    CommittedOffset,
    OffsetPending,
    OffsetRemoved,
    OffsetStored,
    TransactionEnded,
)
from tidelog.coordinator.group.state.sizes import offset_bytes, pending_bytes

Place: TypeAlias = tuple[str, int]
"""A topic's name and a partition."""

_Live: TypeAlias = OffsetStored | OffsetPending

_NOTHING: Mapping[str, Mapping[int, CommittedOffset]] = {}
_NO_OFFSETS: Mapping[int, CommittedOffset] = {}
_NO_PRODUCERS: Mapping[int, CommittedOffset | None] = {}
_NO_PENDING: Mapping[Place, Mapping[int, CommittedOffset | None]] = {}


class CommittedOffsets:
    """Offsets by group, topic and partition. Empty entries are removed."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[str, dict[Place, dict[int, CommittedOffset | None]]] = {}
        """By group and partition: the pending offset of each producer, in the order of the log.

        None: a newer one was committed meanwhile, so it will not count even if its transaction
        commits.
        """
        self._producers: dict[int, dict[tuple[str, Place], None]] = {}
        """The places of each producer's pending offsets, in order."""
        self.size_bytes = 0
        """Their approximate memory."""
        self._changed: set[str] | None = None
        """During a capture: the groups whose offsets were copied since."""

    # Committed offsets.

    def store(self, record: OffsetStored) -> None:
        """Apply a committed offset."""
        self._put(record.group_id, (record.topic, record.partition), record.committed)
        pending = self._pending.get(record.group_id, {}).get((record.topic, record.partition), {})
        for producer_id in pending:
            self._supersede(pending, producer_id)

    def remove(self, record: OffsetRemoved) -> None:
        """Remove a committed offset, if there is one, and the pending ones in its place."""
        place = record.topic, record.partition
        for producer_id in list(self._pending.get(record.group_id, {}).get(place, ())):
            self._drop(producer_id, record.group_id, place)
            self._forget_place(producer_id, record.group_id, place)
        topics = self._writable(record.group_id)
        partitions = topics.get(record.topic, {})
        self.size_bytes -= offset_bytes(partitions.pop(record.partition, None))
        if not partitions:
            topics.pop(record.topic, None)
        if not topics:
            self._groups.pop(record.group_id, None)

    def group_ids(self) -> Sequence[str]:
        """The groups with committed or pending offsets."""
        return list(dict.fromkeys(chain(self._groups, self._pending)))

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """A group's offsets by topic and partition. The caller must neither change nor keep
        them."""
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """One committed offset."""
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def all(self) -> Iterator[tuple[str, Place, int]]:
        """All committed offsets, by group. Any thread may call this."""
        for group_id, topics in list(self._groups.items()):
            for topic, partitions in list(topics.items()):
                for partition, committed in list(partitions.items()):
                    yield group_id, (topic, partition), committed.offset

    # Pending offsets of open transactions.

    def hold(self, record: OffsetPending) -> None:
        """Apply a pending offset, which replaces an older one of the same transaction."""
        place = record.topic, record.partition
        pending = self._pending.setdefault(record.group_id, {}).setdefault(place, {})
        # The order is that of the log: a newer one of the same producer goes to the end.
        if record.producer_id in pending:
            self.size_bytes -= pending_bytes(pending.pop(record.producer_id))
        pending[record.producer_id] = record.committed
        self.size_bytes += pending_bytes(record.committed)
        self._producers.setdefault(record.producer_id, {})[record.group_id, place] = None

    def end(self, record: TransactionEnded) -> None:
        """Apply the end of a transaction.

        Its offsets count if it commits, except where a newer one was committed during it.
        """
        for group_id, place in self._producers.pop(record.producer_id, {}):
            if record.commit:
                self._promote(record.producer_id, group_id, place)
            self._drop(record.producer_id, group_id, place)

    def holds(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether the partition has a committed or a pending offset."""
        return self.get(group_id, topic, partition) is not None or self.is_pending(
            group_id, topic, partition
        )

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        return (topic, partition) in self._pending.get(group_id, {})

    def pending_places(self, group_id: str) -> Sequence[Place]:
        """The partitions whose offsets open transactions may change."""
        return list(self._pending.get(group_id, ()))

    # Snapshots.

    def capture(self) -> Iterator[_Live]:
        """The records that bring an empty object into the present state.

        Later changes do not affect them. Until `release`, unchanged groups are shared with this
        object. A newer offset follows each superseded pending one, and so supersedes it again.
        """
        self._changed = set()
        superseded: list[OffsetPending] = []
        pending: list[OffsetPending] = []
        for group_id, places in self._pending.items():
            for (topic, partition), producers in places.items():
                for producer_id, committed in producers.items():
                    if committed is not None:
                        found = OffsetPending(producer_id, group_id, topic, partition, committed)
                        pending.append(found)
                        continue
                    newer = self._groups[group_id][topic][partition]
                    found = OffsetPending(producer_id, group_id, topic, partition, newer)
                    superseded.append(found)
        return chain(superseded, _offsets_of(self._groups.copy()), pending)

    def release(self) -> None:
        """End a capture."""
        self._changed = None

    # Removal.

    def count(self, group_id: str) -> int:
        """The number of a group's offsets, including pending ones."""
        committed = sum(map(len, self.of_group(group_id).values()))
        return committed + len(self._pending.get(group_id, ()))

    def removals(self, group_id: str) -> Iterator[OffsetRemoved]:
        """The records that remove all offsets of a group, including pending ones."""
        return self.removals_where(group_id, None, lambda topic, committed: True)

    def removals_where(
        self,
        group_id: str,
        topics: Collection[str] | None,
        is_gone: Callable[[str, CommittedOffset], bool],
    ) -> Iterator[OffsetRemoved]:
        """The records that remove those offsets of a group for which `is_gone` holds.

        They cover some topics, or all, and pending offsets too. A record removes all offsets of a
        partition. So it waits while an open transaction has one there that is to stay.
        """
        found, waiting = self.of_group(group_id), self._pending.get(group_id, _NO_PENDING)
        for topic in found if topics is None else topics:
            for partition, committed in found.get(topic, _NO_OFFSETS).items():
                pending = waiting.get((topic, partition), _NO_PRODUCERS)
                if is_gone(topic, committed) and not _has_other(topic, pending, is_gone):
                    yield OffsetRemoved(group_id, topic, partition)
        for (topic, partition), pending in waiting.items():
            if topics is not None and topic not in topics:
                continue
            committed_now = found.get(topic, _NO_OFFSETS).get(partition)
            if committed_now is not None and is_gone(topic, committed_now):
                continue  # its removal covers the pending one
            is_any = any(each is not None and is_gone(topic, each) for each in pending.values())
            if is_any and not _has_other(topic, pending, is_gone):
                yield OffsetRemoved(group_id, topic, partition)

    def is_removal_waiting(self, is_gone: Callable[[str, CommittedOffset], bool]) -> bool:
        """Whether `removals_where` leaves out an offset of any group for now."""
        for group_id, places in self._pending.items():
            found = self.of_group(group_id)
            for (topic, partition), pending in places.items():
                committed = found.get(topic, _NO_OFFSETS).get(partition)
                offsets = [each for each in (committed, *pending.values()) if each is not None]
                if any(is_gone(topic, each) for each in offsets) and _has_other(
                    topic, pending, is_gone
                ):
                    return True
        return False

    def expired(
        self,
        group_id: str,
        now_ms: int,
        retention_ms: int,
        *,
        since_ms: int | None,
        keep: Collection[str],
    ) -> Iterator[OffsetRemoved]:
        """The records that remove expired offsets, except in the topics `keep`.

        Offsets that a transaction may change do not expire. An offset's own expiry time counts.
        Others are kept for the retention, from `since_ms` on, or from their commit if that is None.
        """
        for topic, partitions in self.of_group(group_id).items():
            if topic in keep:
                continue
            for partition, committed in partitions.items():
                if committed.expire_timestamp_ms != NO_TIMESTAMP:
                    expires_ms = committed.expire_timestamp_ms
                else:
                    begin_ms = committed.commit_timestamp_ms if since_ms is None else since_ms
                    expires_ms = begin_ms + retention_ms
                if now_ms >= expires_ms and not self.is_pending(group_id, topic, partition):
                    yield OffsetRemoved(group_id, topic, partition)

    def _put(self, group_id: str, place: Place, committed: CommittedOffset) -> None:
        topic, partition = place
        partitions = self._writable(group_id).setdefault(topic, {})
        self.size_bytes += offset_bytes(committed) - offset_bytes(partitions.get(partition))
        partitions[partition] = committed

    def _writable(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """The group's committed offsets, copied if they are captured."""
        topics = self._groups.setdefault(group_id, {})
        if self._changed is not None and group_id not in self._changed:
            self._changed.add(group_id)
            topics = {topic: partitions.copy() for topic, partitions in topics.items()}
            self._groups[group_id] = topics
        return topics

    def _promote(self, producer_id: int, group_id: str, place: Place) -> None:
        pending = self._pending[group_id][place]
        committed = pending[producer_id]
        if committed is None:
            return
        self._put(group_id, place, committed)
        for other in pending:
            if other == producer_id:
                break
            self._supersede(pending, other)

    def _supersede(self, pending: dict[int, CommittedOffset | None], producer_id: int) -> None:
        """Mark a pending offset as superseded: a newer one was committed."""
        self.size_bytes += pending_bytes(None) - pending_bytes(pending[producer_id])
        pending[producer_id] = None

    def _drop(self, producer_id: int, group_id: str, place: Place) -> None:
        places = self._pending[group_id]
        self.size_bytes -= pending_bytes(places[place].pop(producer_id))
        if not places[place]:
            del places[place]
        if not places:
            del self._pending[group_id]

    def _forget_place(self, producer_id: int, group_id: str, place: Place) -> None:
        held = self._producers[producer_id]
        del held[group_id, place]
        if not held:
            del self._producers[producer_id]


def _has_other(
    topic: str,
    pending: Mapping[int, CommittedOffset | None],
    is_gone: Callable[[str, CommittedOffset], bool],
) -> bool:
    """Whether a pending offset is to stay."""
    return any(each is not None and not is_gone(topic, each) for each in pending.values())


def _offsets_of(
    groups: Mapping[str, Mapping[str, Mapping[int, CommittedOffset]]],
) -> Iterator[OffsetStored]:
    for group_id, topics in groups.items():
        for topic, partitions in topics.items():
            for partition, committed in partitions.items():
                yield OffsetStored(group_id, topic, partition, committed)
