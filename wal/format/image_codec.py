"""The binary form of many partition images: one blob of columns.

A checkpoint holds the images of a broker's partitions. A WAL object holds the images of the tenures
that open in it, and a hand-over object holds one image. `docs/formats/checkpoint.md` describes the
bytes. An image that breaks an invariant raises ValueError when it is encoded, since it is a bug,
and CorruptObject when it is decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TenureKey, TopicPartition
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.columns import ColumnReader, strings_bytes, table_bytes
from tidelog.wal.log.adoption import split_references
from tidelog.wal.log.extents import NO_CRC, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.producer_state import ProducerState, RememberedBatch
from tidelog.wal.log.transactions import AbortedIndexEntry

IMAGES_MAGIC = b"TIDEIMGS"
FIRST_FORMAT_VERSION = 1
"""The format of the first release. Its extents have no checksums."""
IMAGES_FORMAT_VERSION = 2

_FORGOTTEN_FLAG = 0x01
_IDENTITY = Struct("<8sI")
_COUNTS = Struct("<7I")
_CRC = Struct("<I")

_PARTITIONS = np.dtype(
    [
        ("topic_id", "V16"),
        ("partition", "<i4"),
        ("leader_epoch", "<i4"),
        ("next_offset", "<i8"),
        ("log_start", "<i8"),
        ("table_next", "<i8"),
        ("epochs", "<u4"),
        ("producers", "<u4"),
        ("aborted", "<u4"),
        ("extents", "<u4"),
        ("flags", "<u4"),
    ]
)
_EPOCHS = np.dtype([("leader_epoch", "<i4"), ("start_offset", "<i8")])
_PRODUCERS = np.dtype(
    [
        ("producer_id", "<i8"),
        ("epoch", "<i2"),
        ("coordinator_epoch", "<i4"),
        ("batches", "<u4"),
        ("ordinal", "<i8"),
        ("transaction_first_offset", "<i8"),
        ("last_timestamp_ms", "<i8"),
    ]
)
_BATCHES = np.dtype(
    [
        ("first_sequence", "<i4"),
        ("last_sequence", "<i4"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp", "<i8"),
    ]
)
_ABORTED = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("last_stable_offset", "<i8"),
    ]
)
_EXTENT_COLUMNS = 6


class ImageBlock(NamedTuple):
    """Some images in binary form, ready to be joined with other blocks into one blob."""

    counts: tuple[int, ...]
    """In the blob's order: partitions, leader epochs, producers, batches, aborted, extents,
    strings."""
    columns: tuple[bytes, ...]
    """The columns of all tables in their order, without the extents' references."""
    references: NDArray[np.uint32]
    """The extents' string numbers, counted from this block's first string."""
    string_lengths: bytes
    strings: bytes


def encode_images(images: Sequence[PartitionImage]) -> bytes:
    """The images as one blob, in this order."""
    return join_blocks([encode_block(images)])


def encode_block(images: Sequence[PartitionImage]) -> ImageBlock:
    """The images as a part of a blob, in this order."""
    for image in images:
        if (why := image.fault()) is not None:
            raise ValueError(f"image of {image.partition}: {why}")
    producers = [producer for image in images for producer in image.producers]
    epochs = [start for image in images for start in image.leader_epochs]
    batches = [batch for producer in producers for batch in producer.batches]
    aborted = [transaction for image in images for transaction in image.aborted]
    extents = [image.extents for image in images]
    named = list(chain.from_iterable(each.references for each in extents))
    references = {name: number for number, name in enumerate(dict.fromkeys(named))}
    lengths, *strings = strings_bytes(references)
    return ImageBlock(
        counts=(
            len(images),
            len(epochs),
            len(producers),
            len(batches),
            len(aborted),
            sum(map(len, extents)),
            len(references),
        ),
        columns=(
            *_table_bytes(_PARTITIONS, [_partition_row(image) for image in images]),
            *_table_bytes(_EPOCHS, epochs),
            *_table_bytes(_PRODUCERS, [_producer_row(p) for p in producers]),
            *_table_bytes(_BATCHES, batches),
            *_table_bytes(_ABORTED, aborted),
            *(
                b"".join([np.array(e.columns()[column], "<i8").tobytes() for e in extents])
                for column in range(_EXTENT_COLUMNS)
            ),
        ),
        references=np.array([references[name] for name in named], "<u4"),
        string_lengths=lengths,
        strings=b"".join(strings),
    )


def join_blocks(blocks: Sequence[ImageBlock]) -> bytes:
    """One blob of the images of all blocks. At least one block is required; it may be empty."""
    counts = tuple(map(sum, zip(*(block.counts for block in blocks), strict=True)))
    references = []
    strings = 0
    for block in blocks:
        references.append((block.references + np.uint32(strings)).tobytes())
        strings += block.counts[-1]
    body = b"".join(
        (
            _IDENTITY.pack(IMAGES_MAGIC, IMAGES_FORMAT_VERSION),
            _COUNTS.pack(*counts),
            *chain.from_iterable(zip(*(block.columns for block in blocks), strict=True)),
            *references,
            *(block.string_lengths for block in blocks),
            *(block.strings for block in blocks),
        )
    )
    return body + _CRC.pack(crc32c(body))


def _table_bytes(dtype: np.dtype[np.void], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    return table_bytes(dtype, rows) or [b""] * len(dtype.names or ())


def _partition_row(image: PartitionImage) -> tuple[Any, ...]:
    return (
        image.partition.topic_id.bytes,
        image.partition.partition,
        image.leader_epoch,
        image.next_offset,
        image.log_start,
        image.table_next,
        len(image.leader_epochs),
        len(image.producers),
        len(image.aborted),
        len(image.extents),
        _FORGOTTEN_FLAG if image.has_forgotten_producers else 0,
    )


def _producer_row(producer: ProducerState) -> tuple[Any, ...]:
    return (
        producer.producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        len(producer.batches),
        producer.ordinal,
        producer.transaction_first_offset,
        producer.last_timestamp_ms,
    )


class Images:
    """A decoded blob, which builds each image on demand."""

    def __init__(self, key: str, data: Buffer) -> None:
        """`data`: exactly one blob. Raises CorruptObject and UnsupportedFormat."""
        self._key = key
        reader, version, counts = _open_blob(key, data)
        partitions, epochs, producers, batches, aborted, extents, strings = counts
        self._partitions = reader.table(_PARTITIONS, partitions)
        self._epochs = reader.table(_EPOCHS, epochs)
        self._producers = reader.table(_PRODUCERS, producers)
        self._batches = reader.table(_BATCHES, batches)
        self._aborted = reader.table(_ABORTED, aborted)
        stored = _EXTENT_COLUMNS - (version == FIRST_FORMAT_VERSION)
        self._extents = [reader.column("<i8", extents).astype(np.int64) for _ in range(stored)]
        if stored < _EXTENT_COLUMNS:
            self._extents.append(np.full(extents, NO_CRC, np.int64))
        self._references = reader.column("<u4", extents)
        self._strings = reader.strings(strings)
        reader.finish()
        if extents and int(self._references.max()) >= strings:
            raise CorruptObject(key, "an extent refers to a missing string")
        self._epoch_bounds = self._bounds(self._partitions["epochs"], epochs)
        self._producer_bounds = self._bounds(self._partitions["producers"], producers)
        self._aborted_bounds = self._bounds(self._partitions["aborted"], aborted)
        self._extent_bounds = self._bounds(self._partitions["extents"], extents)
        self._batch_bounds = self._bounds(self._producers["batches"], batches)
        topics = self._partitions["topic_id"].tobytes()
        self.tenures: tuple[TenureKey, ...] = tuple(
            (TopicPartition(UUID(bytes=topics[16 * row : 16 * row + 16]), partition), epoch)
            for row, (partition, epoch) in enumerate(
                zip(
                    self._partitions["partition"].tolist(),
                    self._partitions["leader_epoch"].tolist(),
                    strict=True,
                )
            )
        )
        """The partition and leader epoch of each image."""

    @property
    def objects(self) -> Sequence[str]:
        """The objects of the images' extents, possibly repeated; adopted batches by references."""
        return self._strings

    def __len__(self) -> int:
        return len(self.tenures)

    def __iter__(self) -> Iterator[PartitionImage]:
        return (self.image(row) for row in range(len(self)))

    def image(self, row: int) -> PartitionImage:
        """The image of a row. Raises CorruptObject if it breaks an invariant."""
        partition, leader_epoch = self.tenures[row]
        columns = self._partitions
        try:
            image = PartitionImage(
                partition=partition,
                leader_epoch=leader_epoch,
                next_offset=int(columns["next_offset"][row]),
                log_start=int(columns["log_start"][row]),
                table_next=int(columns["table_next"][row]),
                leader_epochs=tuple(
                    map(EpochStart._make, _rows(self._epochs, *self._epoch_bounds[row : row + 2]))
                ),
                producers=self._producers_of(row),
                has_forgotten_producers=bool(columns["flags"][row] & _FORGOTTEN_FLAG),
                aborted=tuple(
                    map(
                        AbortedIndexEntry._make,
                        _rows(self._aborted, *self._aborted_bounds[row : row + 2]),
                    )
                ),
                extents=self._extents_of(row),
            )
            why = image.fault()
        except ValueError as error:
            why = str(error)
        if why is not None:
            raise CorruptObject(self._key, f"image of {partition}: {why}")
        return image

    def _bounds(self, counts: NDArray[Any], total: int) -> list[int]:
        bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        if int(bounds[-1]) != total:
            raise CorruptObject(self._key, f"its rows count {bounds[-1]} members, it holds {total}")
        return [int(bound) for bound in bounds]

    def _producers_of(self, row: int) -> tuple[ProducerState, ...]:
        first, end = self._producer_bounds[row : row + 2]
        made = []
        for number, fields in zip(
            range(first, end), _rows(self._producers, first, end), strict=True
        ):
            producer_id, epoch, coordinator_epoch, _, ordinal, first_offset, timestamp = fields
            batches = _rows(self._batches, *self._batch_bounds[number : number + 2])
            made.append(
                ProducerState(
                    producer_id,
                    epoch,
                    coordinator_epoch,
                    tuple(map(RememberedBatch._make, batches)),
                    ordinal,
                    first_offset,
                    timestamp,
                )
            )
        return tuple(made)

    def _extents_of(self, row: int) -> Extents:
        first, end = self._extent_bounds[row : row + 2]
        base, last, timestamp, position, length, crc = (
            array("q", column[first:end].tobytes()) for column in self._extents
        )
        strings = self._strings
        named = [strings[reference] for reference in self._references[first:end].tolist()]
        keys, adoptions = split_references(named, base)
        return Extents.from_columns(base, last, timestamp, keys, position, length, crc, adoptions)


def _open_blob(key: str, data: Buffer) -> tuple[ColumnReader, int, tuple[int, ...]]:
    view = memoryview(data)
    header_size = _IDENTITY.size + _COUNTS.size
    if len(view) < header_size + _CRC.size:
        raise CorruptObject(key, f"its images have only {len(view)} bytes")
    magic, version = _IDENTITY.unpack_from(view)
    if magic != IMAGES_MAGIC:
        raise CorruptObject(key, f"its images begin with {magic!r}, not {IMAGES_MAGIC!r}")
    end = len(view) - _CRC.size
    if crc32c(view[:end]) != _CRC.unpack_from(view, end)[0]:
        raise CorruptObject(key, "the checksum of its images does not match")
    if version < FIRST_FORMAT_VERSION:
        raise CorruptObject(key, f"its images are of format {version}")
    if version > IMAGES_FORMAT_VERSION:
        raise UnsupportedFormat(
            f"object {key} holds partition images of format {version}; this version of Tidelog"
            f" reads formats up to {IMAGES_FORMAT_VERSION}: use a newer one; nothing was changed"
        )
    counts = _COUNTS.unpack_from(view, _IDENTITY.size)
    return ColumnReader(key, view, header_size, end), version, counts


def _rows(table: dict[str, NDArray[Any]], first: int, end: int) -> Iterator[tuple[Any, ...]]:
    if first == end:
        return iter(())
    return zip(*(column[first:end].tolist() for column in table.values()), strict=True)
