"""The page on state snapshots agrees with the code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest

from tidelog.clock import SystemClock
from tidelog.coordinator.group.records.consumer_columns import (
    CONSUMER_GROUP,
    CONSUMER_MEMBER,
    CURRENT_ASSIGNMENT,
    TARGET_ASSIGNMENT,
    TARGET_EPOCH,
)
from tidelog.coordinator.group.records.consumer_records import (
    CurrentAssignment,
    CurrentStored,
    TargetStored,
)
from tidelog.coordinator.group.records.log_records import CommittedOffset, GroupRecord, OffsetStored
from tidelog.coordinator.group.state_table import (
    GROUP,
    OFFSET,
    PENDING_OFFSET,
    RECORD,
    GroupTable,
)
from tidelog.coordinator.snapshot_format import SnapshotEncoder, SnapshotOrigin, SnapshotPosition
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.entropy import SystemEntropy
from tidelog.identifiers import LeaderEpoch
from tidelog.storage.stores.location import open_store

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "formats" / "state.md").read_text()
TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "long": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "table"), [("Transactions", TransactionTable()), ("Groups", GroupTable())]
)
def test_the_columns_are_those_of_the_page(
    title: str, table: GroupTable | TransactionTable
) -> None:
    told: dict[str, str] = {}
    for names, kinds in re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", section(title), re.MULTILINE):
        columns = re.findall(r"`(\w+)`", names)
        types = [kinds.strip()] if kinds.startswith("list") else kinds.strip().split(", ")
        told |= dict(zip(columns, types * len(columns) if len(types) == 1 else types, strict=True))
    assert list(told) == table.schema.names
    for name, kind in told.items():
        found = table.schema.field(name).type
        assert pa.types.is_list(found) if kind.startswith("list") else found == TYPES[kind], name


def test_the_kinds_of_rows_are_those_of_the_page() -> None:
    for kind in (GROUP, OFFSET, PENDING_OFFSET, RECORD):
        assert f"`{kind}`: " in section("Groups")
    row = section("Groups").split("| `record_kind` |")[1].split("\n")[0]
    for kind in (
        CONSUMER_GROUP,
        CONSUMER_MEMBER,
        TARGET_EPOCH,
        TARGET_ASSIGNMENT,
        CURRENT_ASSIGNMENT,
    ):
        assert f"`{kind}`" in row


def test_the_fields_of_a_member_are_those_of_the_page() -> None:
    told = section("Groups").split("A member has these fields: ")[1]
    members = GroupTable.schema.field("members").type.value_type
    assert re.findall(r"`(\w+)`", told)[: members.num_fields - 1] == [
        field.name for field in list(members)[:-1]
    ]


def test_the_queries_of_the_page_read_the_newest_snapshots(tmp_path: Path) -> None:
    async def fill() -> None:
        clock = SystemClock()
        store = open_store(f"file://{tmp_path}/bucket", clock, SystemEntropy())
        for partition, offset in ((0, 5), (0, 9), (1, 7)):
            origin = SnapshotOrigin("c", "__consumer_offsets", UUID(int=1), partition)
            group = f"group-{partition}"
            has = {UUID(int=2): frozenset([offset])}
            records: list[GroupRecord] = [
                OffsetStored(group, "tides", 3, CommittedOffset(offset, -1, "", 1000)),
                TargetStored(group, "m", {UUID(int=2): frozenset([0, 1])}),
                CurrentStored(group, "m", CurrentAssignment(assigned=has)),
            ]
            encoder = SnapshotEncoder(
                GroupTable(),
                origin,
                SnapshotPosition(offset, LeaderEpoch(0), 0),
                records,
            )
            encoder.step()
            await store.put(origin.key(offset), encoder.finish().pieces)
        await store.close()

    (tmp_path / "bucket").mkdir()
    asyncio.run(fill())
    blocks = section("With other tools").split("```sql\n")[1:]
    queries = [
        block.split("```")[0].replace("'bucket/", f"'{tmp_path}/bucket/") for block in blocks
    ]
    offsets, assignments = [sorted(duckdb.sql(query).fetchall()) for query in queries]
    assert [row[:4] for row in offsets] == [("group-0", "tides", 3, 9), ("group-1", "tides", 3, 7)]
    topic_id = str(UUID(int=2))
    assert assignments == [("group-0", "m", topic_id, 9), ("group-1", "m", topic_id, 7)]
