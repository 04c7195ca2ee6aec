"""Rebuilds a partition's log around accepted losses. Pure.

Recovery refuses a log with a hole (`recovery`). `salvage` replays the remaining entries and fills
the offsets between them. `patch` fills the offsets of unreadable batches. Both fill with batches
without records (`filler`). Entries behind a hole keep their offsets. If the log's end is lost, the
log continues END_OFFSETS later, so that it assigns no offset that a client may have seen.

A transaction that was open before a hole may have ended in it. If the producer continues the same
transaction behind the hole, it had not ended. Otherwise its end is unknown, and it is aborted. Its
marker lies in the hole if the producer began another transaction behind it, else at the log's end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch, TenureKey, TopicPartition
from tidelog.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from tidelog.wal.log.entries import EntryKind, IndexEntry
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_state import ProducerState
from tidelog.wal.recover.filler import BATCH_OFFSETS_MAX, Filler
from tidelog.wal.recover.wal_reader import WalContent

END_OFFSETS = BATCH_OFFSETS_MAX
"""The offsets that a log skips if its end is lost: far more than the loss can have contained."""
_PLACED = (EntryKind.BATCH, EntryKind.ADOPTED, EntryKind.OPENING)


class Found(NamedTuple):
    """A remaining entry, and its slot's time."""

    entry: IndexEntry
    time_ms: int


Event: TypeAlias = "Found | CorruptObject"
"""One step of a log's replay: an entry, or a damaged object that may hold entries."""


class AbortedLoss(NamedTuple):
    """A transaction that was aborted because its end is unknown."""

    producer_id: int
    first_offset: int


class Salvaged(NamedTuple):
    """The remains of a partition."""

    image: PartitionImage
    aborted: tuple[AbortedLoss, ...]


def events_of(content: WalContent, tenure: TenureKey, start: int) -> Iterator[Event]:
    """The events of a tenure in a WAL, from a slot on."""
    for number, slot in enumerate(content.slots, content.start):
        if number < start:
            continue
        if isinstance(slot, CorruptObject):
            if content.may_hold(number, tenure):
                yield slot
        else:
            for entry in slot.entries((tenure,)):
                yield Found(entry, slot.header.created_ms)


def salvage(base: PartitionImage, events: Sequence[Event], filler: Filler) -> Salvaged:
    """The log that begins with `base` and continues with its remaining entries."""
    return _Salvage(base, events, filler).run()


def patch(
    image: PartitionImage, unreadable: Collection[Extent], table_next: int, filler: Filler
) -> PartitionImage:
    """The image with filled `unreadable` extents.

    Offsets from the table's end, `table_next`, to the first extent are filled too.
    """
    patched = Extents()
    held_from = max(table_next, image.log_start)
    following = image.extents.base_offset
    missing_to = image.next_offset if following is None else following
    if held_from < missing_to:
        _fill(image, held_from, missing_to - 1, filler, patched)
    for extent in image.extents.from_offset(held_from):
        if extent in unreadable:
            _fill(image, extent.base_offset, extent.last_offset, filler, patched)
        else:
            patched.append(extent)
    return replace(
        image,
        next_offset=max(image.next_offset, table_next),
        table_next=table_next,
        extents=patched,
        aborted=tuple(each for each in image.aborted if each.last_offset >= table_next),
    )


def filled_offsets(image: PartitionImage, filler: Filler) -> list[tuple[int, int]]:
    """The lost ranges of offsets, first and last, which were filled."""
    ranges: list[tuple[int, int]] = []
    for extent in image.extents:
        if extent.key != filler.key:
            continue
        if ranges and ranges[-1][1] + 1 == extent.base_offset:
            ranges[-1] = ranges[-1][0], extent.last_offset
        else:
            ranges.append((extent.base_offset, extent.last_offset))
    return ranges


def _fill(image: PartitionImage, first: int, last: int, filler: Filler, extents: Extents) -> None:
    """Fill offsets whose entries are known: the markers of aborted transactions come back."""
    partition = image.partition
    at = first
    for aborted in image.aborted:
        if not first <= aborted.last_offset <= last:
            continue
        entries = filler.empty_batches(partition, _epoch_at(image, at), at, aborted.last_offset - 1)
        producer = ProducerState.unknown(aborted.producer_id)
        known = [each for each in image.producers if each.producer_id == aborted.producer_id]
        epoch = _epoch_at(image, aborted.last_offset)
        entries.append(filler.abort(partition, epoch, aborted.last_offset, (*known, producer)[0]))
        _append(extents, entries)
        at = aborted.last_offset + 1
    _append(extents, filler.empty_batches(partition, _epoch_at(image, at), at, last))


def _append(extents: Extents, entries: Sequence[IndexEntry]) -> None:
    for entry in entries:
        extents.append_batch(Extent.of(entry), entry.crc)


def _epoch_at(image: PartitionImage, offset: int) -> LeaderEpoch:
    """The leader epoch of an offset, as far as the image knows."""
    known = [each.leader_epoch for each in image.leader_epochs if each.start_offset <= offset]
    if known:
        return known[-1]
    return image.leader_epochs[0].leader_epoch if image.leader_epochs else image.leader_epoch


class _Salvage:
    def __init__(self, base: PartitionImage, events: Sequence[Event], filler: Filler) -> None:
        self._log = PartitionLog.from_image(base)
        self._partition: TopicPartition = base.partition
        self._events = events
        self._filler = filler
        self._aborted: list[AbortedLoss] = []
        self._doubtful: dict[int, ProducerState] = {}
        """Producers whose transaction was open at a hole and has not continued behind it yet."""
        self._ahead: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """For each producer its transactional entries: their places in `events`, and ordinals."""
        for place, event in enumerate(events):
            if isinstance(event, Found) and event.entry.flags & TRANSACTIONAL_FLAG:
                entry = event.entry
                self._ahead[entry.producer_id].append((place, entry.ordinal))

    def run(self) -> Salvaged:
        is_end_lost = False
        for place, event in enumerate(self._events):
            if isinstance(event, CorruptObject):
                is_end_lost = True
                self._note_open_transactions()
                continue
            entry, time_ms = event
            if self._log.next_offset < entry.base_offset and entry.kind is not EntryKind.RELOCATED:
                self._note_open_transactions()
                self._fill(place, entry.base_offset)
            if entry.leader_epoch > self._log.leader_epoch:
                self._log.begin_tenure(entry.leader_epoch)
            if entry.kind in _PLACED:
                is_end_lost = False
            if entry.flags & (TRANSACTIONAL_FLAG | CONTROL_FLAG):
                self._doubtful.pop(entry.producer_id, None)
            try:
                self._log.replay(entry, time_ms)
            except CorruptObject:
                # It contradicts earlier entries: it repeats offsets, or merges lost batches. The
                # earlier entries count.
                continue
        for producer in self._doubtful.values():
            self._abort(producer)
        if is_end_lost:
            self._fill(len(self._events), self._log.next_offset + END_OFFSETS)
        return Salvaged(self._log.image(), tuple(self._aborted))

    def _note_open_transactions(self) -> None:
        image = self._log.image()
        for producer in image.producers:
            if producer.has_open_transaction:
                self._doubtful[producer.producer_id] = producer

    def _fill(self, place: int, end: int) -> None:
        """Fill the offsets up to `end`, before the event at this place."""
        # Each of these transactions ended in a hole: there is room for its marker. The one whose
        # producer goes on first must end first.
        ended = sorted(
            (following[0], producer.producer_id)
            for producer in self._doubtful.values()
            if (following := self._following(producer.producer_id, place)) is not None
            and following[1] != producer.ordinal
        )
        for _, producer_id in ended[: end - self._log.next_offset]:
            self._abort(self._doubtful.pop(producer_id))
        first, last = self._log.next_offset, end - 1
        for entry in self._filler.empty_batches(
            self._partition, self._log.leader_epoch, first, last
        ):
            self._log.replay(entry, self._filler.created_ms)

    def _following(self, producer_id: int, place: int) -> tuple[int, int] | None:
        """The producer's next transactional entry from a place on: its place, and ordinal."""
        return next((each for each in self._ahead[producer_id] if each[0] >= place), None)

    def _abort(self, producer: ProducerState) -> None:
        self._aborted.append(AbortedLoss(producer.producer_id, producer.transaction_first_offset))
        log, offset = self._log, self._log.next_offset
        entry = self._filler.abort(self._partition, log.leader_epoch, offset, producer)
        log.replay(entry, self._filler.created_ms)
