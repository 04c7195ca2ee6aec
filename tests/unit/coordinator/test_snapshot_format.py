"""Foreign files are refused, and the error names them. Facts of a later version are accepted."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    GroupRecord,
    GroupStored,
    OffsetPending,
    OffsetStored,
    StoredGroup,
    StoredMember,
)
from tidelog.coordinator.group.state_table import GroupTable
from tidelog.coordinator.snapshot_format import (
    ROWS_A_STEP,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotOrigin,
    SnapshotPosition,
)
from tidelog.coordinator.transaction.log_records import TransactionStored, UnknownTransactionRecord
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.coordinator.transaction.transaction import created
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, ProducerId
from tidelog.storage.segment.parquet_seal import seal

ORIGIN = SnapshotOrigin("cluster", "__consumer_offsets", UUID(int=7), 3)
KEY = ORIGIN.key(42)
ASSIGNMENT = b"\0\0" + b"\0\0\0\1" + b"\0\5tides" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\1"
MEMBER = StoredMember("m-1", None, "client", "/10.0.0.1", 60_000, 45_000, b"sub", ASSIGNMENT)
TRANSACTION = created(ProducerId(1), 60_000, 1_700_000_000_000)
RECORDS: list[GroupRecord] = [
    GroupStored("g", StoredGroup("consumer", 3, "range", "m-1", 1_700_000_000_000, (MEMBER,))),
    OffsetStored("g", "tides", 0, CommittedOffset(17, 2, "note", 1_700_000_000_123)),
    OffsetStored(
        "g", "tides", 1, CommittedOffset(18, -1, "", 1_700_000_000_123, 1_800_000_000_000)
    ),
    OffsetPending(9, "g", "tides", 0, CommittedOffset(20, 2, "", 1_700_000_001_000)),
]


def encoded(records: list[GroupRecord] = RECORDS, origin: SnapshotOrigin = ORIGIN) -> bytes:
    position = SnapshotPosition(42, LeaderEpoch(5), 1_700_000_002_000)
    encoder = SnapshotEncoder(GroupTable(), origin, position, records)
    while encoder.step():
        pass
    return b"".join(encoder.finish().pieces)


def decoded(data: bytes, key: str = KEY) -> list[GroupRecord]:
    decoder = SnapshotDecoder(GroupTable(), ORIGIN, key, data)
    found: list[GroupRecord] = []
    while (step := decoder.step()) is not None:
        found += step
    return found


def rewritten(
    change: Callable[[pa.Table], pa.Table] = lambda table: table, **metadata: str
) -> bytes:
    """The snapshot as another writer could have written it."""
    file = pq.ParquetFile(pa.BufferReader(encoded()))
    fields = {name.decode(): value.decode() for name, value in file.metadata.metadata.items()}
    fields |= {name.replace("_", "."): value for name, value in metadata.items()}
    table = change(file.read())
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(fields)
    return b"".join(seal(memoryview(sink.getvalue())).pieces)


def test_keys_sort_as_offsets_do() -> None:
    assert KEY == "state/__consumer_offsets/3/00000000000000000042.parquet"
    assert ORIGIN.offset_in(KEY) == 42
    assert ORIGIN.offset_in("state/__consumer_offsets/3/42.parquet") is None
    assert ORIGIN.offset_in("state/__consumer_offsets/3/notes") is None
    assert ORIGIN.offset_in(ORIGIN._replace(partition=4).key(42)) is None


def test_a_state_of_nothing_is_a_snapshot_too() -> None:
    assert decoded(encoded([])) == []


def test_a_large_state_goes_in_steps() -> None:
    committed = CommittedOffset(1, 1, "", 1)
    records: list[GroupRecord] = [
        OffsetStored("g", "t", number, committed) for number in range(2 * ROWS_A_STEP + 1)
    ]
    data = encoded(records)
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 3
    assert decoded(data) == records


def test_columns_that_only_a_later_version_knows_are_passed_over() -> None:
    extended = rewritten(lambda table: table.append_column("tide", pa.array(["high"] * 4)))
    assert decoded(extended) == RECORDS


def test_a_newer_format_is_named_with_ours() -> None:
    with pytest.raises(
        UnsupportedFormat, match=rf"{KEY} is of state snapshot format 2; .* format 1"
    ):
        decoded(rewritten(tidelog_format_version="2"))


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"tidelog_format": "tidelog.transactions"}, "tidelog.format is 'tidelog.transactions'"),
        ({"tidelog_cluster": "another"}, "tidelog.cluster is 'another', not 'cluster'"),
        ({"tidelog_topic": "__transaction_state"}, "tidelog.topic"),
        ({"tidelog_topic_id": str(UUID(int=8))}, "tidelog.topic.id"),
        ({"tidelog_partition": "4"}, "tidelog.partition is '4', not '3'"),
        ({"tidelog_next_offset": "43"}, "it holds the state at offset 43"),
        ({"tidelog_next_offset": "many"}, "tidelog.next.offset 'many', which is no number"),
        ({"tidelog_rows": "5"}, "tidelog.rows is '5', not '4'"),
        ({"tidelog_format_version": ""}, "which is no number"),
    ],
)
def test_a_snapshot_of_another_origin_is_corrupt(metadata: dict[str, str], why: str) -> None:
    with pytest.raises(CorruptObject, match=why) as caught:
        decoded(rewritten(**metadata))
    assert caught.value.key == KEY


def test_a_file_under_another_offset_is_corrupt() -> None:
    with pytest.raises(CorruptObject, match="it holds the state at offset 42"):
        decoded(encoded(), ORIGIN.key(41))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: table.drop_columns("metadata"), "no column metadata: string"),
        (
            lambda table: table.set_column(11, "offset", pa.array(["x"] * 4)),
            r"another \(string\) column offset: int64",
        ),
        (
            lambda table: table.set_column(
                0, pa.field("kind", pa.string(), nullable=False), pa.array(["wave"] * 4)
            ),
            "row group 0 does not decode: a row has the unknown kind 'wave'",
        ),
        (
            lambda table: table.set_column(1, "group_id", pa.nulls(4, pa.string())),
            "a row has no group_id",
        ),
    ],
)
def test_rows_that_cannot_be_records_are_corrupt(
    change: Callable[[pa.Table], pa.Table], why: str
) -> None:
    with pytest.raises(CorruptObject, match=why):
        decoded(rewritten(change))


def test_a_transaction_in_a_state_that_is_never_stored_is_corrupt() -> None:
    stored = TransactionStored("id", TRANSACTION)
    rows = TransactionTable().rows([stored])
    dead = rows.set_column(3, rows.schema.field("state"), pa.array(["Dead"]))
    assert list(TransactionTable().records(rows)) == [stored]
    with pytest.raises(UnknownTransactionRecord, match="transactional id id is in state Dead"):
        list(TransactionTable().records(dead))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"no Parquet at all", b"PAR1" * 9])
def test_a_malformed_snapshot_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptObject) as caught:
        decoded(data)
    assert caught.value.key == KEY


def test_a_cut_snapshot_is_corrupt() -> None:
    whole = encoded()
    for length in range(len(whole)):
        with pytest.raises(CorruptObject):
            decoded(whole[:length])


def test_a_flipped_bit_is_noticed_wherever_it_is() -> None:
    whole = encoded()
    # All bytes count except the magic number at the file's beginning, which no reader needs.
    for position in range(4, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptObject):
            decoded(bytes(damaged))
