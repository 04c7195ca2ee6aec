"""CPU time of converting record batches to segments and back, in this process."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from tidelog.identifiers import TopicPartition
from tidelog.records.compression import Compression
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.records.rows.row_encoding import encode_rows
from tidelog.storage.segment.segment_index import SegmentIndex
from tidelog.storage.segment.segment_writer import SegmentWriter, WrittenSegment

GB = 1_000_000_000
_TOPIC_ID, _SEGMENT_ID = UUID(int=1), UUID(int=2)
_DIFFERENT_BATCHES_MAX = 1000
"""More batches take longer to make than to measure; fewer would compress too well."""
_RUNS = 3
"""The minimum of some runs counts: other work of the machine can only add to it."""


class ConversionShape(NamedTuple):
    """Records of one kind; half of each value is random, half compresses well."""

    record_bytes: int
    batch_records: int
    codec: Compression = Compression.NONE
    with_headers: bool = False

    @property
    def label(self) -> str:
        """The label in the report."""
        headers = ", key and 2 headers" if self.with_headers else ""
        codec = "" if self.codec is Compression.NONE else f", {self.codec.name.lower()}"
        return f"{self.record_bytes} B{headers}, {self.batch_records} a batch{codec}"


class Conversion(NamedTuple):
    """CPU seconds for a GB of values, in each direction."""

    decode_seconds_a_gb: float
    """Batches to rows."""
    write_seconds_a_gb: float
    """Rows to a segment."""
    read_seconds_a_gb: float
    """A segment to rows, with the columns that consumers get."""
    encode_seconds_a_gb: float
    """Rows to batches."""
    stored_bytes_a_byte: float
    """The segment's bytes for each byte of values."""
    log_bytes_a_byte: float
    """The source batches' bytes for each byte of values."""

    @property
    def roll_seconds_a_gb(self) -> float:
        """Batches to a segment."""
        return self.decode_seconds_a_gb + self.write_seconds_a_gb

    @property
    def fetch_seconds_a_gb(self) -> float:
        """A segment to batches."""
        return self.read_seconds_a_gb + self.encode_seconds_a_gb


SHAPES = (
    ConversionShape(100, 1),
    ConversionShape(100, 16),
    ConversionShape(100, 500),
    ConversionShape(100, 500, with_headers=True),
    ConversionShape(1024, 16),
    ConversionShape(1024, 500),
    ConversionShape(1024, 500, Compression.LZ4),
    ConversionShape(1024, 500, Compression.ZSTD),
)


def measure_conversion(shape: ConversionShape, total_bytes: int) -> Conversion:
    """Convert both ways; rows are encoded with their original codec."""
    batches = max(1, total_bytes // (shape.record_bytes * shape.batch_records))
    raw_bytes = batches * shape.batch_records * shape.record_bytes
    buffer = log_of(shape, batches)
    slices = list(decode_rows(buffer))

    def encode() -> None:
        for rows in slices:
            offsets = integers_of(rows.column("offset"))
            encode_rows(rows, int(offsets[0]), int(offsets[-1]) + 1, compression=shape.codec)

    def decode() -> None:
        for _ in decode_rows(buffer):
            pass

    def write() -> WrittenSegment:
        writer = SegmentWriter(TopicPartition(_TOPIC_ID, 0), 0)
        for rows in slices:
            writer.write(rows)
        return writer.finish(batches * shape.batch_records, _SEGMENT_ID)

    segment = write()
    data = memoryview(b"".join(segment.pieces))

    def read() -> None:
        index = SegmentIndex("segment", len(data), data[-segment.segment.tail_bytes :])
        for group in range(index.groups):
            wanted = index.byte_range(group, group)
            index.decode(
                group, group, wanted.start, data[wanted.start : wanted.start + wanted.length]
            )

    scale = GB / raw_bytes
    return Conversion(
        cpu_seconds(decode) * scale,
        cpu_seconds(write) * scale,
        cpu_seconds(read) * scale,
        cpu_seconds(encode) * scale,
        len(data) / raw_bytes,
        len(buffer) / raw_bytes,
    )


def log_of(shape: ConversionShape, batches: int) -> bytes:
    """A log of that many batches at consecutive offsets; a few different ones alternate."""
    chance = random.Random(0)
    different = [_batch(shape, chance) for _ in range(min(batches, _DIFFERENT_BATCHES_MAX))]
    stamped = []
    for index in range(batches):
        batch = bytearray(different[index % len(different)])
        struct.pack_into(">q", batch, 0, index * shape.batch_records)
        stamped.append(batch)
    return b"".join(stamped)


def cpu_seconds(work: Callable[[], object]) -> float:
    """The process's CPU time of one run."""
    spent = []
    for _ in range(_RUNS):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return min(spent)


def _batch(shape: ConversionShape, chance: random.Random) -> bytearray:
    half = shape.record_bytes // 2
    records = [
        NewRecord(
            chance.randbytes(half) + b"x" * (shape.record_bytes - half),
            b"key %d" % index if shape.with_headers else None,
            [("trace", b"0123456789"), ("kind", b"a")] if shape.with_headers else (),
            1_700_000_000_000 + index,
        )
        for index in range(shape.batch_records)
    ]
    return encode_batch(records, compression=shape.codec)
