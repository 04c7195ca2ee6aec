"""Committed offsets of all groups of one coordinator: pure, changed by records alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tidelog.coordinator.group.log_records import (
    NO_TIMESTAMP,
    CommittedOffset,
    OffsetRemoved,
    OffsetStored,
)

_NOTHING: Mapping[str, Mapping[int, CommittedOffset]] = {}


class CommittedOffsets:
    """Offsets by group, topic and partition. Nothing empty is kept."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}

    def store(self, record: OffsetStored) -> None:
        """Take up a committed offset."""
        topics = self._groups.setdefault(record.group_id, {})
        topics.setdefault(record.topic, {})[record.partition] = record.committed

    def remove(self, record: OffsetRemoved) -> None:
        """Forget a committed offset, if there is one."""
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        partitions.pop(record.partition, None)
        if not partitions:
            topics.pop(record.topic, None)
        if not topics:
            self._groups.pop(record.group_id, None)

    def group_ids(self) -> Sequence[str]:
        """The groups that have any."""
        return list(self._groups)

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """A group's offsets by topic and partition; not to be changed or kept."""
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """One committed offset."""
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def removals(self, group_id: str, topics: Collection[str] | None = None) -> list[OffsetRemoved]:
        """What removes a group's offsets: all, or those in some topics."""
        found = self.of_group(group_id)
        return [
            OffsetRemoved(group_id, topic, partition)
            for topic in (found if topics is None else topics)
            for partition in found.get(topic, ())
        ]

    def expired(
        self,
        group_id: str,
        now_ms: int,
        retention_ms: int,
        *,
        since_ms: int | None,
        keep: Collection[str],
    ) -> Iterator[OffsetRemoved]:
        """What removes the offsets that have expired, except in the topics `keep`.

        An offset with a time of expiry of its own goes by that. Others are kept for the retention,
        counted from `since_ms`, or from their commit where that is None.
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
                if now_ms >= expires_ms:
                    yield OffsetRemoved(group_id, topic, partition)
