"""Makes an object that fills the gaps of accepted losses in partitions' logs. Pure.

The extents of a log have no hole. `tidelog bucket repair` replaces lost records by batches without
records, as Kafka's cleaner leaves them. It also writes markers that abort incomplete transactions.
All lie in one merged object, so readers, rolls and merges treat them as any other.
"""

from __future__ import annotations

from awscrt.checksums import crc32c

from tidelog.identifiers import Incarnation, LeaderEpoch, Slot, TenureKey, TopicPartition
from tidelog.records.batch import NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, build_batch
from tidelog.records.control import MarkerType, control_batch
from tidelog.wal.format.object_format import (
    OWN_OBJECT,
    Layout,
    ObjectHeader,
    ObjectKind,
    encode_index,
    finish_object,
    merged_key,
)
from tidelog.wal.log.entries import NO_ORDINAL, EntryKind, IndexEntry
from tidelog.wal.log.producer_state import ProducerState

BATCH_OFFSETS_MAX = 2**30
"""The offsets in one batch without records: clients count them in 31 bits."""


class Filler:
    """Collects the batches of one object, for any number of partitions."""

    def __init__(
        self, incarnation: Incarnation, number: int, created_ms: int, writer_id: bytes
    ) -> None:
        self._header = ObjectHeader(
            ObjectKind.MERGED, incarnation, Slot(number), created_ms, writer_id, previous_crc=0
        )
        self.key = merged_key(incarnation, number)
        self._bodies = bytearray()
        self._tenures: dict[TenureKey, int] = {}
        self._entries: list[IndexEntry] = []

    @property
    def created_ms(self) -> int:
        return self._header.created_ms

    @property
    def is_empty(self) -> bool:
        """Whether it has no batch."""
        return not self._entries

    def empty_batches(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, first: int, last: int
    ) -> list[IndexEntry]:
        """Batches without records at the offsets from `first` to `last`."""
        added = []
        for base in range(first, last + 1, BATCH_OFFSETS_MAX):
            delta = min(last - base, BATCH_OFFSETS_MAX - 1)
            batch = build_batch(
                b"",
                attributes=0,
                last_offset_delta=delta,
                base_timestamp=NO_TIMESTAMP,
                max_timestamp=NO_TIMESTAMP,
                record_count=0,
                base_offset=base,
                leader_epoch=leader_epoch,
            )
            added.append(self._add(partition, leader_epoch, batch))
        return added

    def abort(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        offset: int,
        producer: ProducerState,
    ) -> IndexEntry:
        """A marker that aborts the producer's open transaction."""
        batch = control_batch(
            MarkerType.ABORT,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            coordinator_epoch=producer.coordinator_epoch,
            timestamp=self.created_ms,
            base_offset=offset,
            leader_epoch=leader_epoch,
        )
        return self._add(partition, leader_epoch, batch, producer)

    def data(self) -> bytes:
        """The bytes of the object at `key`."""
        columns = [
            [
                each.kind,
                self._tenures[each.topic_partition, each.leader_epoch],
                each.base_offset,
                each.last_offset,
                each.record_count,
                each.producer_id,
                each.producer_epoch,
                each.ordinal,
                each.first_sequence,
                each.last_sequence,
                each.flags,
                each.first_timestamp,
                each.max_timestamp,
                OWN_OBJECT,
                each.position,
                each.length,
            ]
            for each in self._entries
        ]
        index = encode_index(list(self._tenures), list(zip(*columns, strict=True)), [])
        position = self._header.size_bytes + len(self._bodies)
        end = position + len(index)
        head, foot = bytes(self._header.size_bytes), bytes(self._header.footer_bytes)
        data = bytearray().join((head, self._bodies, index, foot))
        finish_object(data, self._header, Layout(position, end, len(data)), crc32c(self._bodies))
        return bytes(data)

    def _add(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        batch: bytearray,
        ended: ProducerState | None = None,
    ) -> IndexEntry:
        """`ended`: the producer whose transaction a marker ends."""
        header = BatchHeader.parse(batch)
        self._tenures.setdefault((partition, leader_epoch), len(self._tenures))
        entry = IndexEntry(
            kind=EntryKind.BATCH,
            topic_id=partition.topic_id,
            partition=partition.partition,
            leader_epoch=leader_epoch,
            base_offset=header.base_offset,
            last_offset=header.base_offset + header.last_offset_delta,
            record_count=header.record_count,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            ordinal=NO_ORDINAL if ended is None else ended.ordinal,
            first_sequence=NO_SEQUENCE,
            last_sequence=NO_SEQUENCE if ended is None else ended.coordinator_epoch,
            flags=header.attributes,
            first_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            key=self.key,
            position=self._header.size_bytes + len(self._bodies),
            length=len(batch),
            crc=header.crc,
        )
        self._bodies += batch
        self._entries.append(entry)
        return entry
