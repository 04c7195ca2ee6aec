"""The places of a partition's offsets: runs of batches in WAL objects."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.buffers import Buffer
from tidelog.wal.log.adoption import Adoption
from tidelog.wal.log.entries import EntryKind, IndexEntry

NO_CRC = -1
_TAKEN = -(2**63)
"""Marks an extent that has had its turn; no batch has so early a timestamp."""


Place: TypeAlias = tuple[str, int, int]
"""An extent's object, its position there, and its base offset.

Object and position alone do not suffice: two transactions may adopt the same staged batch, if the
first one aborts.
"""


def crc_of_batch(crc: int) -> int:
    """An extent's checksum if it holds one batch with this checksum in its header."""
    if crc == NO_CRC:
        return NO_CRC
    begun: int = crc32c(crc.to_bytes(4, "big"))
    return begun


def grown_crc(crc: int, following: int) -> int:
    """An extent's checksum after the addition of a batch with the checksum `following`."""
    if NO_CRC in (crc, following):
        return NO_CRC
    grown: int = crc32c(following.to_bytes(4, "big"), crc)
    return grown


class Extent(NamedTuple):
    """A run of offsets without a hole, as whole batches in offset order, at one place."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    key: str
    position: int
    length: int
    crc: int = NO_CRC
    """CRC-32C of the checksums in the batches' headers, in stored order and form.

    It tells these batches from others that would fit into their place. NO_CRC: the first release
    wrote the entries.
    """
    adoption: Adoption | None = None
    """The identity of a staged batch, which each read stamps into it.

    None: the batches are stored with their identity.
    """

    @classmethod
    def of(cls, entry: IndexEntry) -> Extent:
        """The extent of one entry of a WAL object's index."""
        adoption = None
        if entry.kind is EntryKind.ADOPTED:
            adoption = Adoption(
                entry.producer_id, entry.producer_epoch, entry.ordinal, entry.leader_epoch
            )
        return cls(
            entry.base_offset,
            entry.last_offset,
            entry.max_timestamp,
            entry.key,
            entry.position,
            entry.length,
            entry.crc if entry.kind is EntryKind.RELOCATED else crc_of_batch(entry.crc),
            adoption,
        )

    @property
    def place(self) -> Place:
        """The place, which tells the extent from all others of a read."""
        return self.key, self.position, self.base_offset

    def check_crcs(self, crcs: Buffer) -> None:
        """Raise CorruptObject unless `crcs`, the checksums of the read batches, are the extent's.

        The caller has compared them with the batches themselves.
        """
        if self.crc not in (NO_CRC, crc32c(crcs)):
            raise CorruptObject(
                self.key,
                f"the record batches at position {self.position} are not those of offsets"
                f" {self.base_offset} to {self.last_offset}, but others",
            )


class SlotEffect(NamedTuple):
    """The effect of one durable slot on a tenure that has an entry in it."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    extents: tuple[Extent, ...]
    """In offset order; empty if the slot holds no batch of the tenure."""
    log_start: int | None
    """The new log start; None if it did not change."""


class Extents:
    """Extents in offset order, without holes between them; 56 bytes each beside the shared keys.

    A copy is a snapshot. Images hold such copies, which never change.
    """

    __slots__ = (
        "_adoptions",
        "_base_offsets",
        "_crcs",
        "_keys",
        "_last_offsets",
        "_lengths",
        "_max_timestamps",
        "_positions",
        "_total_bytes",
    )

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._base_offsets = array("q")
        self._last_offsets = array("q")
        self._max_timestamps = array("q")
        self._positions = array("q")
        self._lengths = array("q")
        self._crcs = array("q")
        self._keys: list[str] = []
        self._adoptions: dict[int, Adoption] = {}
        """By base offset: most partitions have none."""
        self._total_bytes = 0
        for extent in extents:
            self.append(extent)

    @classmethod
    def from_columns(
        cls,
        base_offsets: array[int],
        last_offsets: array[int],
        max_timestamps: array[int],
        keys: list[str],
        positions: array[int],
        lengths: array[int],
        crcs: array[int],
        adoptions: Mapping[int, Adoption],
    ) -> Extents:
        """The extents in columns ("q") of equal length, with adoptions by base offset.

        Raises ValueError if the extents have a hole.
        """
        made = cls.__new__(cls)
        made._base_offsets = base_offsets
        made._last_offsets = last_offsets
        made._max_timestamps = max_timestamps
        made._keys = keys
        made._positions = positions
        made._lengths = lengths
        made._crcs = crcs
        made._adoptions = dict(adoptions)
        made._total_bytes = sum(lengths)
        if len(keys) > 1:
            bases = np.frombuffer(base_offsets, np.int64)
            lasts = np.frombuffer(last_offsets, np.int64)
            if (bases[1:] != lasts[:-1] + 1).any():
                raise ValueError("the extents have a hole between them")
        return made

    def columns(self) -> tuple[array[int], ...]:
        """Base offsets, last offsets, maximum timestamps, positions, lengths, checksums.

        Callers must not change them.
        """
        return (
            self._base_offsets,
            self._last_offsets,
            self._max_timestamps,
            self._positions,
            self._lengths,
            self._crcs,
        )

    @property
    def keys(self) -> list[str]:
        """The object of each extent. Callers must not change the list."""
        return self._keys

    @property
    def references(self) -> list[str]:
        """The references that images store for the extents. Callers must not change the list."""
        if not self._adoptions:
            return self._keys
        return [
            key if adoption is None else adoption.reference(key)
            for key, adoption in zip(self._keys, self._adoptions_in_order(), strict=True)
        ]

    def adopted(self) -> Iterator[Extent]:
        """The extents of adopted batches, in offset order."""
        return map(self.__getitem__, map(self._index_of, sorted(self._adoptions)))

    def _index_of(self, base_offset: int) -> int:
        return bisect_left(self._base_offsets, base_offset)

    def _adoptions_in_order(self) -> Iterator[Adoption | None]:
        return map(self._adoptions.get, self._base_offsets)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Extent:
        base_offset = self._base_offsets[index]
        # In half the time of `Extent(...)`: a fetch reads many extents.
        return tuple.__new__(
            Extent,
            (
                base_offset,
                self._last_offsets[index],
                self._max_timestamps[index],
                self._keys[index],
                self._positions[index],
                self._lengths[index],
                self._crcs[index],
                self._adoptions.get(base_offset) if self._adoptions else None,
            ),
        )

    def __iter__(self) -> Iterator[Extent]:
        return map(
            Extent._make,
            zip(
                self._base_offsets,
                self._last_offsets,
                self._max_timestamps,
                self._keys,
                self._positions,
                self._lengths,
                self._crcs,
                self._adoptions_in_order(),
                strict=True,
            ),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Extents):
            return NotImplemented
        own, others = (self._keys, self._adoptions), (other._keys, other._adoptions)
        return own == others and self.columns() == other.columns()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Extents({list(self)!r})"

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    @property
    def base_offset(self) -> int | None:
        """The first offset; None without extents."""
        return self._base_offsets[0] if self._keys else None

    @property
    def next_offset(self) -> int | None:
        """The offset behind the last one; None without extents."""
        return self._last_offsets[-1] + 1 if self._keys else None

    def append(self, extent: Extent) -> None:
        """Add the next extent. ValueError if it is empty or does not follow the last offset."""
        if self._keys and extent.base_offset != self._last_offsets[-1] + 1:
            raise ValueError(
                f"an extent from offset {extent.base_offset} does not follow"
                f" {self._last_offsets[-1]}"
            )
        if extent.last_offset < extent.base_offset:
            raise ValueError(f"an extent from {extent.base_offset} ends at {extent.last_offset}")
        self._base_offsets.append(extent.base_offset)
        self._last_offsets.append(extent.last_offset)
        self._max_timestamps.append(extent.max_timestamp)
        self._keys.append(extent.key)
        self._positions.append(extent.position)
        self._lengths.append(extent.length)
        self._crcs.append(extent.crc)
        if extent.adoption is not None:
            self._adoptions[extent.base_offset] = extent.adoption
        self._total_bytes += extent.length

    def append_batch(self, extent: Extent, crc: int) -> None:
        """Add an extent of one batch, whose header has this checksum.

        If the batch lies right behind the last extent, that extent grows.
        """
        if (
            self._keys
            and self._keys[-1] == extent.key
            and self._positions[-1] + self._lengths[-1] == extent.position
            and self._last_offsets[-1] + 1 == extent.base_offset
        ):
            self._last_offsets[-1] = extent.last_offset
            self._max_timestamps[-1] = max(self._max_timestamps[-1], extent.max_timestamp)
            self._lengths[-1] += extent.length
            self._crcs[-1] = grown_crc(self._crcs[-1], crc)
            self._total_bytes += extent.length
        else:
            self.append(extent)

    def relocate(self, moved: Extent) -> bool:
        """Replace the extents that `moved` covers by it; False if all of them are dropped already.

        If only the first of them are dropped, their offsets come back with `moved`. Raises
        ValueError if an extent would be cut.
        """
        if not self._keys or moved.last_offset < self._base_offsets[0]:
            return False
        first = max(0, bisect_right(self._base_offsets, moved.base_offset) - 1)
        end = bisect_right(self._last_offsets, moved.last_offset)
        is_whole = end > first and self._last_offsets[end - 1] == moved.last_offset
        if not is_whole or self._base_offsets[first] < moved.base_offset:
            raise ValueError(f"an extent would be cut by offsets {moved[:2]} in {moved.key}")
        self._total_bytes += moved.length - sum(self._lengths[first:end])
        self._forget_adoptions(first, end)
        for column, value in zip(
            self.columns(),
            (
                moved.base_offset,
                moved.last_offset,
                moved.max_timestamp,
                moved.position,
                moved.length,
                moved.crc,
            ),
            strict=True,
        ):
            column[first:end] = array("q", (value,))
        self._keys[first:end] = [moved.key]
        return True

    def bytes_below(self, offset: int) -> int:
        """The bytes of the extents that begin below an offset."""
        count = bisect_left(self._base_offsets, offset)
        return self._total_bytes if count == len(self._keys) else sum(self._lengths[:count])

    def find(self, offset: int) -> Extent | None:
        """The extent that holds an offset."""
        index = bisect_right(self._base_offsets, offset) - 1
        if index < 0 or self._last_offsets[index] < offset:
            return None
        return self[index]

    def from_offset(self, offset: int) -> Iterator[Extent]:
        """The extents that hold this offset or later ones, in order."""
        for index in range(bisect_left(self._last_offsets, offset), len(self._keys)):
            yield self[index]

    def since_timestamp(self, timestamp: int) -> Iterator[Extent]:
        """The extents that hold a record of this time or later, in offset order."""
        times = np.frombuffer(self._max_timestamps, np.int64)
        # A list, so that no view of the array is alive when it grows.
        indexes = np.flatnonzero(times >= timestamp).tolist()
        del times
        for index in indexes:
            yield self[index]

    def by_max_timestamp(self) -> Iterator[Extent]:
        """The extents, latest timestamp first, ties in offset order.

        Callers take few, mostly one: each costs a pass, where a sort would order all.
        """
        # A copy, so that no view of the array is alive when it grows.
        times = np.array(self._max_timestamps, np.int64)
        for _ in range(len(times)):
            index = int(times.argmax())
            times[index] = _TAKEN
            yield self[index]

    def drop_below(self, offset: int) -> None:
        """Forget the extents that lie wholly below an offset."""
        count = bisect_left(self._last_offsets, offset)
        if count:
            self._total_bytes -= sum(self._lengths[:count])
            self._forget_adoptions(0, count)
            for column in self.columns():
                del column[:count]
            del self._keys[:count]

    def _forget_adoptions(self, first: int, end: int) -> None:
        if self._adoptions:
            for base_offset in self._base_offsets[first:end]:
                self._adoptions.pop(base_offset, None)

    def copy(self, end_offset: int | None = None) -> Extents:
        """A snapshot of all extents, or of those that begin below `end_offset`."""
        count = len(self._keys)
        if end_offset is not None:
            count = bisect_left(self._base_offsets, end_offset)
        copied = Extents()
        copied._base_offsets = self._base_offsets[:count]
        copied._last_offsets = self._last_offsets[:count]
        copied._max_timestamps = self._max_timestamps[:count]
        copied._keys = self._keys[:count]
        copied._positions = self._positions[:count]
        copied._lengths = self._lengths[:count]
        copied._crcs = self._crcs[:count]
        copied._adoptions = dict(self._adoptions)
        if count < len(self._keys):
            copied._adoptions = {
                base: adoption
                for base, adoption in self._adoptions.items()
                if base < self._base_offsets[count]
            }
        whole = count == len(self._keys)
        copied._total_bytes = self._total_bytes if whole else sum(copied._lengths)
        return copied
