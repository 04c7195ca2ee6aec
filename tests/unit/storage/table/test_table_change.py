"""Entries of the table log: a written entry is read back, and errors name the fault."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from awscrt.checksums import crc32c

from tests.unit.storage.segments import STAMP, TOPIC_ID, advance, commit_of, listed
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.storage.table.table_change import (
    PartitionChange,
    decode_commit,
    encode_commit,
    writer_id_of,
)

KEY = "topics/x/_delta_log/00000000000000000007.json"
FIRST = commit_of(advance(0, 0, 10, listed(0, 0, 9)), first=True)
LARGE = commit_of(
    advance(0, 100, 300, listed(0, 100, 150, 1), listed(0, 170, 299, 2)),
    PartitionChange(
        partition=2,
        removed=(listed(2, 0, 9, 3).name, listed(2, 10, 19, 4).name),
        rewritten=(listed(2, 0, 19, 5, timestamp_max=None),),
    ),
    PartitionChange(partition=7, removed=(listed(7, 0, 9, 6).name,)),
    advance(9, 5, 6),
)


def actions(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def signed(lines: list[dict[str, Any]]) -> bytes:
    """An entry of these actions, with its right checksum."""
    lines[-1]["commitInfo"]["checksum"] = "0" * 8
    body = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    return body.replace(b'"checksum":"00000000"', b'"checksum":"%08x"' % crc32c(body))


@pytest.mark.parametrize("commit", [FIRST, LARGE])
def test_an_entry_is_read_as_it_was_meant(commit: Any) -> None:
    data = encode_commit(commit)
    assert decode_commit(KEY, data, TOPIC_ID) == commit
    assert writer_id_of(KEY, data) == commit.writer_id


def test_a_commit_tells_the_end_of_each_partition_and_its_new_data() -> None:
    found = actions(encode_commit(LARGE))
    assert [line["txn"] for line in found if "txn" in line] == [
        {"appId": "partition=0", "version": 300},
        {"appId": "partition=9", "version": 6},
    ]
    changes = [(line["add"]["path"], line["add"]["dataChange"]) for line in found if "add" in line]
    assert [is_new for _, is_new in changes] == [True, True, False]
    gone = [line["remove"]["dataChange"] for line in found if "remove" in line]
    assert gone == [False, False, True]


def test_statistics_are_exact_and_in_the_engines_form() -> None:
    segment = replace(
        listed(0, 5, 20), first_row=7, last_row=18, timestamp_min=STAMP, undated_rows=3
    )
    (_, _, _, add, _) = actions(encode_commit(commit_of(advance(0, 0, 30, segment), first=True)))
    assert json.loads(add["add"]["stats"]) == {
        "numRecords": 16,
        "minValues": {"offset": 7, "timestamp": "2023-11-14T22:13:20.000Z"},
        "maxValues": {"offset": 18, "timestamp": "2023-11-14T22:13:20.000Z"},
        "nullCount": {"offset": 0, "timestamp": 3},
    }


@pytest.mark.parametrize("extreme", [-(2**63) // 1000 + 1, (2**63 - 1) // 1000])
def test_times_that_have_no_date_have_no_statistics(extreme: int) -> None:
    segment = replace(listed(0, 0, 9), timestamp_min=extreme, timestamp_max=extreme)
    commit = commit_of(advance(0, 0, 10, segment))
    data = encode_commit(commit)
    add = next(line["add"] for line in actions(data) if "add" in line)
    assert json.loads(add["stats"])["minValues"] == {"offset": 0}
    assert decode_commit(KEY, data, TOPIC_ID) == commit


def test_unknown_actions_and_fields_are_passed_over() -> None:
    lines = actions(encode_commit(LARGE))
    lines.insert(0, {"domainMetadata": {"domain": "x"}})
    lines[-1]["commitInfo"]["isolationLevel"] = "Serializable"
    assert decode_commit(KEY, signed(lines), TOPIC_ID) == LARGE


def test_no_altered_or_missing_byte_goes_unseen() -> None:
    data = encode_commit(LARGE)
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 4
        with pytest.raises(CorruptObject, match=KEY):
            decode_commit(KEY, altered, TOPIC_ID)
    for cut in (0, 1, 10, len(data) - 1):
        with pytest.raises(CorruptObject, match=KEY):
            decode_commit(KEY, data[:cut], TOPIC_ID)


def changed(commit: Any, kind: str, **fields: Any) -> bytes:
    lines = actions(encode_commit(commit))
    next(line[kind] for line in lines if kind in line).update(fields)
    return signed(lines)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(LARGE, "add", path="part-0.parquet"), "no segment"),
        (changed(LARGE, "add", path=5), "no segment"),
        (changed(LARGE, "add", tags={}), "does not decode"),
        (changed(LARGE, "add", tags={"tidelog.segment": "{}"}), "does not decode"),
        (changed(LARGE, "commitInfo", writerId="00"), "writer id of 1 bytes"),
        (changed(LARGE, "commitInfo", operationParameters={"x": "1-2"}), "does not decode"),
        (changed(FIRST, "metaData", id=str(UUID(int=9))), "it is the table of"),
        (changed(FIRST, "metaData", configuration={}), "tidelog.format is None"),
        (
            signed([line for line in actions(encode_commit(FIRST)) if "metaData" not in line]),
            "come together",
        ),
        (signed([{"add": {}, "remove": {}}, *actions(encode_commit(LARGE))]), "no action"),
        (b'{"add":{"path":"x"}}\n', "no entry that Tidelog wrote"),
        (b"", "no entry that Tidelog wrote"),
    ],
)
def test_a_wrong_entry_is_named_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(CorruptObject, match=message) as raised:
        decode_commit(KEY, data, TOPIC_ID)
    assert raised.value.key == KEY


@pytest.mark.parametrize(
    "data",
    [
        changed(FIRST, "protocol", minReaderVersion=3),
        changed(FIRST, "protocol", writerFeatures=["invariants", "tidelog", "more"]),
        changed(FIRST, "metaData", configuration={"tidelog.format": "2"}),
    ],
)
def test_a_newer_table_is_refused_with_the_remedy(data: bytes) -> None:
    with pytest.raises(UnsupportedFormat, match="use a newer Tidelog"):
        decode_commit(KEY, data, TOPIC_ID)
