"""Records and batches for properties: our own, other implementations', and damaged ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from tidelog.records.compression import Compression
from tidelog.records.parse import header_parsing, parsing, record_starts
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.validate import examination

NOW_MS = 1_800_000_000_000

contents = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.integers(0, 300).map(lambda size: b"x" * size),
    st.sampled_from([b"y" * 8191, b"z" * 8192, b"w" * 70_000]),
)
header_keys = st.text(max_size=8)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_000_200), st.integers(0, NOW_MS), st.just(0)
)


def new_records(timestamps: st.SearchStrategy[int] = timestamps) -> st.SearchStrategy[NewRecord]:
    return st.builds(
        NewRecord,
        value=contents,
        key=contents,
        headers=st.lists(st.tuples(header_keys, contents), max_size=3),
        timestamp=timestamps,
    )


@st.composite
def record_lists(draw: st.DrawFn) -> list[NewRecord]:
    """A few different records, repeated: real batches are long and alike."""
    few = draw(st.lists(new_records(), min_size=1, max_size=6))
    size = sum(len(record.key or b"") + len(record.value or b"") for record in few)
    return few * draw(st.sampled_from([1, 1, 2, 30, 100] if size < 1000 else [1, 2]))


def built_by(
    builder: type[AioBuilder] | type[KafkaPythonBuilder],
    records: Sequence[NewRecord],
    codec: Compression,
) -> bytes:
    """The batch that another implementation makes of the records."""
    batch = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for offset, record in enumerate(records):
        batch.append(
            offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    return bytes(batch.build())


def sealed(batch: bytearray) -> bytes:
    """A batch with the right length and checksum, so that the validator looks at the deeper
    parts."""
    if len(batch) >= 61:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


_TELLING = (0, 1, 2, 3, 5, 6, 7, 0x7F, 0x80, 0x81, 0xC0, 0xFE, 0xFF)


def damaged(batch: bytes, chance: random.Random) -> bytes:
    """The batch with some bytes changed, inserted, removed or repeated."""
    copy = bytearray(batch)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        # Rarely in the header: nearly any change there is refused at once.
        first = 61 if chance.random() < 0.8 and len(copy) > 61 else 8
        position = chance.randrange(min(first, len(copy)), len(copy) + 1)
        size = chance.choice((1, 1, 1, 2, 9))
        match chance.randrange(5):
            case 0 | 1:
                for at in range(position, min(position + size, len(copy))):
                    copy[at] = chance.choice((*_TELLING, chance.randrange(256)))
            case 2:
                copy[position:position] = bytes(chance.choice(_TELLING) for _ in range(size))
            case 3:
                del copy[position : position + size]
            case _:
                copy[position:position] = copy[position : position + chance.randrange(40)]
    return sealed(copy)


WAYS = ("singly", "together", "lockstep", "pieces")


@contextmanager
def examined(way: str) -> Iterator[None]:
    """Make the validator examine records in one of the ways, for any number of them."""
    singly = 1 << 31 if way == "singly" else -1
    lanes = 1 if way == "lockstep" else 1 << 31
    with (
        patch.multiple(
            examination,
            _SINGLY_MAX=singly,
            _JOIN_BYTES_MAX=-1 if way == "pieces" else 1 << 31,
            _PIECE_ROWS=5,
        ),
        patch.multiple(parsing, _ROWS=7),
        patch.multiple(
            record_starts,
            _LANES_MIN=lanes,
            _WALKED_TOGETHER_MIN=2,
            _RUN_ROWS_MIN=3,
            _RUN_ROWS_GUESSED=5,
            _GUESSES_MAX=64,
            _STINT_ROWS=5,
        ),
        patch.multiple(header_parsing, _LANES_MIN=lanes, _GATHER_BYTES_MAX=1 << 11),
    ):
        yield


def simple_batch(codec: Compression = Compression.NONE) -> bytes:
    """Three records of different kinds."""
    records = [
        NewRecord(b"value", b"key", [("name", b"content"), ("k", None)], 1_700_000_000_000),
        NewRecord(None, None, (), 1_700_000_000_500),
        NewRecord(b"", b"", [("", b"")], 1_700_000_000_100),
    ]
    return bytes(encode_batch(records, compression=codec))
