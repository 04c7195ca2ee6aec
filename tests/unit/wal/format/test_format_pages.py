"""The pages on the WAL's formats agree with the code: these tests read objects as the pages say."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from awscrt.checksums import crc32c

from tests.properties.wal.batches import (
    METADATA,
    batch,
    header,
    incarnation,
    stamps,
    topic_partition,
)
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.wal.format.image_codec import encode_images
from tidelog.wal.format.object_format import ObjectKind, encode_header
from tidelog.wal.format.slot_index import check_body
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.producer_state import ProducerState, RememberedBatch
from tidelog.wal.log.transactions import AbortedIndexEntry
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.checkpoint import encode_checkpoint
from tidelog.wal.write.slot_entries import BatchEntry, OpeningEntry

PAGES = Path(__file__).resolve().parents[4] / "docs" / "formats"
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i16": "h", "i32": "i", "i64": "q"}


def section(page: str, begin: str, end: str) -> str:
    text = (PAGES / page).read_text()
    return text[text.index(begin) : text.index(end, text.index(begin) + 1)]


def code_of(kind: str) -> str:
    """The struct code of a type as the pages name it."""
    counted = re.fullmatch(r"(?:(\d+) x )?(\w+)", kind)
    if counted and counted[2] in CODES:
        return (counted[1] or "") + CODES[counted[2]]
    size = re.fullmatch(r"(\d+) bytes", kind)
    assert size, kind
    return size[1] + "s"


def placed(text: str) -> tuple[str, int]:
    """A table with the columns at, type, what: as a struct, checked for gaps."""
    codes, position = "<", 0
    for at, kind in re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE):
        assert int(at) == position, f"{at} should be {position}"
        codes += code_of(kind.strip())
        position = struct.calcsize(codes)
    return codes, position


def columns(text: str) -> list[tuple[str, str]]:
    """A table with the columns column, type, what: (name, struct code)."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", text, re.MULTILINE)
    return [(name, code_of(kind)) for name, kind in rows if name != "column" and "--" not in name]


def small_object() -> bytes:
    buffer = SlotBuffer()
    buffer.add(OpeningEntry(image()))
    for number, sequence in enumerate((4, 7)):
        data, head = batch(3, producer=8, epoch=2, sequence=sequence, timestamp=55 + number)
        buffer.add(BatchEntry(topic_partition(1), LeaderEpoch(5), data, head, 100 + 3 * number, 6))
    stamped = header(9, previous_crc=77)._replace(stamps=stamps(6))
    return bytes(buffer.assemble(stamped, {(topic_partition(1), LeaderEpoch(5)): 4}).data)


def image() -> PartitionImage:
    return PartitionImage(
        partition=topic_partition(1),
        leader_epoch=LeaderEpoch(5),
        next_offset=100,
        log_start=3,
        table_next=90,
        leader_epochs=(EpochStart(LeaderEpoch(5), 20),),
        producers=(ProducerState(8, 2, 4, (RememberedBatch(1, 3, 97, 99, 50),), 6, 97, 1234),),
        has_forgotten_producers=True,
        aborted=(AbortedIndexEntry(8, 91, 93, 94),),
        extents=Extents([Extent(90, 99, 50, "wal/a", 64, 500, 0xFEEDBEEF)]),
    )


def test_the_header() -> None:
    codes, size = placed(section("wal.md", "## Header", "A seal is"))
    assert size == 64
    for data, magic, version in (
        (small_object(), b"TIDEWALO", 2),
        (encode_header(header(9, 77)._replace(kind=ObjectKind.SEAL)), b"TIDESEAL", 1),
    ):
        fields = struct.unpack_from(codes, data)
        assert fields[:7] == (magic, version, 7, 1, 9, 0, header(9).writer_id)
        assert fields[7:] == (77, crc32c(data[:60]))


def test_the_stamps() -> None:
    codes, size = placed(section("wal.md", "## Stamps", "## Data objects"))
    assert size == 32
    data = small_object()
    fields = struct.unpack_from(codes, data, 64)
    assert fields == (6, METADATA.sequence, METADATA.checksum, bytes(8), crc32c(data[:92]))


def test_the_footer() -> None:
    codes, size = placed(section("wal.md", "**Footer.**", "Recovery reads"))
    assert size == 44
    data = small_object()
    index, images, whole, bodies_crc, crc, version, magic = struct.unpack_from(codes, data, -44)
    assert (whole, version, magic) == (len(data), 2, b"TIDEFOOT")
    assert data[-140:-44] == data[:96]
    assert bodies_crc == crc32c(data[96:index])
    assert crc == crc32c(data[-12:-8], crc32c(data[index : len(data) - 16]))
    assert data[images : images + 8] == b"TIDEIMGS"


def test_the_index() -> None:
    data = small_object()
    found = check_body("key", data)
    position = found.layout.index_position
    entries, tenures, strings = struct.unpack_from("<III", data, position)
    assert (entries, tenures, strings) == (3, 1, 0)
    assert data[position + 12 : position + 28] == topic_partition(1).topic_id.bytes
    assert struct.unpack_from("<ii", data, position + 28) == (1, 5)
    assert struct.unpack_from("<q", data, position + 36) == (4,)
    position += 44
    rows: dict[str, tuple[int, ...]] = {}
    for name, code in columns(section("wal.md", "| column | type |", "- *s* strings")):
        rows[name] = struct.unpack_from(f"<{entries}{code}", data, position)
        position += entries * struct.calcsize("<" + code)
    assert position == found.layout.images_position
    assert rows["kind"] == (3, 1, 1)
    assert rows["base offset"] == (100, 100, 103)
    assert rows["last offset"] == (-1, 102, 105)
    assert rows["record count"] == (0, 3, 3)
    assert rows["ordinal"] == (-1, 6, 6)
    assert rows["last sequence"] == (-1, 6, 9)
    assert rows["max timestamp"] == (-1, 55, 56)
    assert rows["position"][:2] == (0, 96)
    assert rows["length"][0] == 0


def test_a_checkpoint() -> None:
    codes, size = placed(section("checkpoint.md", "| at | type |", "| 60 |"))
    assert size == 60
    data = encode_checkpoint(incarnation(), Slot(12), 99, METADATA, [image()])
    assert struct.unpack_from(codes, data) == (
        *(b"TIDECKPT", 2, 7, 1, 12, 99),
        crc32c(data[:40]),
        METADATA.sequence,
        METADATA.checksum,
        crc32c(data[:56]),
    )
    assert data[60:] == encode_images([image()])


def test_a_blob_of_images() -> None:
    codes, size = placed(section("checkpoint.md", "## A blob of images", "| 40 |"))
    assert size == 40
    data = encode_images([image()])
    magic, version, *counts = struct.unpack_from(codes, data)
    assert (magic, version, counts) == (b"TIDEIMGS", 2, [1] * 7)
    assert struct.unpack_from("<I", data, len(data) - 4)[0] == crc32c(data[:-4])
    tables = (
        [code for _, code in columns(section("checkpoint.md", "**Partitions**", "**Leader"))],
        ["i", "q"],
        [code for _, code in columns(section("checkpoint.md", "**Producers**", "**Batches**"))],
        ["i", "i", "q", "q", "q"],
        ["q"] * 4,
        [*["q"] * 6, "I"],
        ["I"],
    )
    # With one row in each table, columns and rows are the same bytes.
    read = [
        struct.unpack_from("<" + "".join(table), data, place(tables, n))
        for n, table in enumerate(tables)
    ]
    assert read == [
        (topic_partition(1).topic_id.bytes, 1, 5, 100, 3, 90, 1, 1, 1, 1, 1),
        (5, 20),
        (8, 2, 4, 1, 6, 97, 1234),
        (1, 3, 97, 99, 50),
        (8, 91, 93, 94),
        (90, 99, 50, 64, 500, 0xFEEDBEEF, 0),
        (5,),
    ]
    assert data[-9:-4] == b"wal/a"


def place(tables: tuple[list[str], ...], number: int) -> int:
    """The position at which a table begins in a blob of one row each."""
    return 40 + sum(struct.calcsize("<" + "".join(table)) for table in tables[:number])
