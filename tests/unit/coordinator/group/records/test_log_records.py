"""The records of `__consumer_offsets`: byte for byte as Kafka writes them, and back."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetPending,
    OffsetRemoved,
    OffsetStored,
    StoredGroup,
    StoredMember,
    UnknownGroupRecord,
    decode_record,
    encode_record,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
OPTIONAL = st.none() | TEXT
BYTES = st.binary(max_size=40)
IDS = st.none() | st.uuids().filter(lambda each: each.int > 0)
COMMITTED = st.builds(CommittedOffset, INT64, INT32, TEXT, INT64, st.just(-1), IDS)
EXPIRING = st.builds(
    CommittedOffset, INT64, st.just(-1), TEXT, INT64, st.integers(-1, 2**63 - 1), IDS
)
MEMBERS = st.builds(StoredMember, TEXT, OPTIONAL, TEXT, TEXT, INT32, INT32, BYTES, BYTES)
GROUPS = st.builds(
    StoredGroup, TEXT, INT32, OPTIONAL, OPTIONAL, INT64, st.lists(MEMBERS, max_size=3).map(tuple)
)
RECORDS = (
    st.builds(OffsetStored, TEXT, TEXT, INT32, COMMITTED | EXPIRING)
    | st.builds(OffsetRemoved, TEXT, TEXT, INT32)
    | st.builds(GroupStored, TEXT, GROUPS)
    | st.builds(GroupRemoved, TEXT)
)


@given(RECORDS)
def test_encoded_records_decode(record: GroupRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def test_an_offset_is_pending_by_the_batch_that_it_lies_in() -> None:
    committed = CommittedOffset(7, 2, "m", 1000)
    pending = OffsetPending(9, "g", "t", 3, committed)
    stored = OffsetStored("g", "t", 3, committed)
    assert encode_record(pending) == encode_record(stored)
    assert decode_record(*encode_record(pending), 9) == pending
    assert decode_record(*encode_record(pending)) == stored
    assert decode_record(encode_record(stored)[0], None, 9) == OffsetRemoved("g", "t", 3)


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def test_an_offset_lies_as_in_kafka() -> None:
    record = OffsetStored("g", "topic", 3, CommittedOffset(7, 2, "m", 1000))
    key, value = encode_record(record)
    assert key == b"\0\1" + text("g") + text("topic") + b"\0\0\0\3"
    assert value == b"\0\3" + (7).to_bytes(8, "big") + b"\0\0\0\2" + text("m") + (1000).to_bytes(
        8, "big"
    )


def test_an_offset_in_a_topic_with_an_id_lies_as_in_kafka() -> None:
    topic_id = UUID(int=5)
    record = OffsetStored("g", "topic", 3, CommittedOffset(7, 2, "m", 1000, -1, topic_id))
    assert encode_record(record)[1] == (
        b"\0\4" + (7).to_bytes(8, "big") + b"\0\0\0\2" + b"\2m" + (1000).to_bytes(8, "big")
        + b"\1" + b"\0\x10" + topic_id.bytes
    )  # fmt: skip


def test_an_offset_with_an_expiry_is_stored_in_the_version_with_expiries() -> None:
    record = OffsetStored("g", "t", 0, CommittedOffset(7, -1, "", 1000, 2000))
    _, value = encode_record(record)
    assert value is not None
    assert value[:2] == b"\0\1"
    assert value[-8:] == (2000).to_bytes(8, "big")


@pytest.mark.parametrize("version", [0, 2])
def test_offsets_of_other_versions_are_read(version: int) -> None:
    """Version 0 of the key is the same, too."""
    key = b"\0\0" + text("g") + text("t") + b"\0\0\0\0"
    value = version.to_bytes(2, "big") + (7).to_bytes(8, "big") + text("m") + (9).to_bytes(8, "big")
    expected = OffsetStored("g", "t", 0, CommittedOffset(7, -1, "m", 9))
    assert decode_record(key, value) == expected


def test_a_group_lies_as_in_kafka() -> None:
    member = StoredMember("m", "i", "c", "/h", 60, 10, b"sub", b"assigned")
    record = GroupStored("g", StoredGroup("consumer", 4, "range", "m", 99, (member,)))
    key, value = encode_record(record)
    assert key == b"\0\2" + text("g")
    assert value == (
        b"\0\3" + text("consumer") + b"\0\0\0\4" + text("range") + text("m")
        + (99).to_bytes(8, "big") + b"\0\0\0\1"
        + text("m") + text("i") + text("c") + text("/h") + b"\0\0\0\x3c\0\0\0\x0a"
        + b"\0\0\0\3sub" + b"\0\0\0\x08assigned"
    )  # fmt: skip


def test_a_group_of_the_first_version_has_one_timeout_for_both() -> None:
    member = text("m") + text("c") + text("/h") + b"\0\0\0\x0a" + b"\0\0\0\0" * 2
    value = b"\0\0" + text("consumer") + b"\0\0\0\4" + text("range") + text("m") + b"\0\0\0\1"
    record = decode_record(b"\0\2" + text("g"), value + member)
    assert isinstance(record, GroupStored)
    (found,) = record.group.members
    assert (found.rebalance_timeout_ms, found.session_timeout_ms) == (10, 10)
    assert record.group.state_timestamp_ms == -1
    assert found.instance_id is None


def test_tombstones_have_no_value() -> None:
    assert encode_record(OffsetRemoved("g", "t", 0))[1] is None
    assert encode_record(GroupRemoved("g"))[1] is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (None, b"", "no key"),
        (b"\0", b"", "does not decode"),
        (b"\0\x09" + text("g"), b"", "version 9"),
        (b"\0\2" + text("g"), b"\0\x09", "does not decode"),
        (b"\0\2" + text("g"), b"\0\3" + text("consumer"), "does not decode"),
        (b"\0\2" + text("g") + b"more", None, "does not decode"),
        (b"\0\1" + text("g") + text("t") + b"\0\0\0\0", b"", "does not decode"),
    ],
)
def test_malformed_records_are_refused(key: bytes | None, value: bytes | None, said: str) -> None:
    with pytest.raises(UnknownGroupRecord, match=said):
        decode_record(key, value)
