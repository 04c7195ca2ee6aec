"""The records of consumer groups: byte for byte as Kafka writes them, and back."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.group.records.consumer_records import (
    ClassicProtocols,
    ConsumerGroupRecord,
    ConsumerGroupRemoved,
    ConsumerGroupStored,
    ConsumerMemberRemoved,
    ConsumerMemberStored,
    ConsumerSubscription,
    CurrentAssignment,
    CurrentRemoved,
    CurrentStored,
    MemberState,
    TargetEpochRemoved,
    TargetEpochStored,
    TargetRemoved,
    TargetStored,
)
from tidelog.coordinator.group.records.log_records import (
    UnknownGroupRecord,
    decode_record,
    encode_record,
)
from tidelog.coordinator.group.records.subscription import SupportedProtocol

T = UUID("00000000-0000-0001-0000-000000000002")
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
OPTIONAL = st.none() | TEXT
ASSIGNMENTS = st.dictionaries(st.uuids(), st.frozensets(INT32, min_size=1), max_size=3)
SUBSCRIPTIONS = st.builds(
    ConsumerSubscription,
    OPTIONAL,
    OPTIONAL,
    TEXT,
    TEXT,
    st.lists(TEXT, max_size=3).map(tuple),
    OPTIONAL,
    INT32,
    OPTIONAL,
)
CURRENTS = st.builds(
    CurrentAssignment, INT32, INT32, st.sampled_from(MemberState), ASSIGNMENTS, ASSIGNMENTS
)
RECORDS = st.one_of(
    st.builds(ConsumerGroupStored, TEXT, INT32, st.integers(-(2**63), 2**63 - 1)),
    st.builds(ConsumerGroupRemoved, TEXT),
    st.builds(ConsumerMemberStored, TEXT, TEXT, SUBSCRIPTIONS),
    st.builds(ConsumerMemberRemoved, TEXT, TEXT),
    st.builds(TargetEpochStored, TEXT, INT32),
    st.builds(TargetEpochRemoved, TEXT),
    st.builds(TargetStored, TEXT, TEXT, ASSIGNMENTS),
    st.builds(TargetRemoved, TEXT, TEXT),
    st.builds(CurrentStored, TEXT, TEXT, CURRENTS),
    st.builds(CurrentRemoved, TEXT, TEXT),
)


@given(RECORDS)
def test_encoded_records_decode(record: ConsumerGroupRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def key_text(value: str) -> bytes:
    """Keys are not flexible."""
    return len(value).to_bytes(2, "big") + value.encode()


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def partitions(*numbers: int) -> bytes:
    """One topic with these partitions."""
    listed = b"".join(number.to_bytes(4, "big") for number in numbers)
    return b"\2" + T.bytes + bytes([len(numbers) + 1]) + listed + b"\0"


SUBSCRIPTION = ConsumerSubscription("i", None, "c", "/h", ("t", "u"), "t.*", 60, "range")
CLASSIC = ConsumerSubscription(
    None,
    None,
    "c",
    "/h",
    ("t",),
    None,
    60,
    None,
    ClassicProtocols(7, (SupportedProtocol("range", b"md"),)),
)
CURRENT = CurrentAssignment(
    5, 4, MemberState.UNREVOKED_PARTITIONS, {T: frozenset({1, 0})}, {T: frozenset({2})}
)


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            ConsumerGroupStored("g", 7, 0),
            b"\0\3" + key_text("g"),
            b"\0\0" + b"\0\0\0\7" + b"\0",
        ),
        (
            ConsumerGroupStored("g", 7, 9),
            b"\0\3" + key_text("g"),
            b"\0\0" + b"\0\0\0\7" + b"\1\0\x08" + (9).to_bytes(8, "big"),
        ),
        (
            ConsumerMemberStored("g", "m", SUBSCRIPTION),
            b"\0\5" + key_text("g") + key_text("m"),
            b"\0\0" + text("i") + b"\0" + text("c") + text("/h")
            + b"\3" + text("t") + text("u") + text("t.*") + b"\0\0\0\x3c" + text("range")
            # Kafka's default is an empty structure and not null, so the encoding has an explicit
            # null.
            + b"\1" + b"\0" + b"\1" + b"\0",
        ),
        (
            ConsumerMemberStored("g", "m", CLASSIC),
            b"\0\5" + key_text("g") + key_text("m"),
            b"\0\0" + b"\0" + b"\0" + text("c") + text("/h") + b"\2" + text("t") + b"\0"
            + b"\0\0\0\x3c" + b"\0" + b"\1" + b"\0" + b"\x11"
            + b"\1" + b"\0\0\0\7" + b"\2" + text("range") + b"\3" + b"md" + b"\0" + b"\0",
        ),
        (
            TargetEpochStored("g", 7),
            b"\0\6" + key_text("g"),
            b"\0\0" + b"\0\0\0\7" + b"\0",
        ),
        (
            TargetStored("g", "m", {T: frozenset({3, 1})}),
            b"\0\7" + key_text("g") + key_text("m"),
            b"\0\0" + partitions(1, 3) + b"\0",
        ),
        (
            CurrentStored("g", "m", CURRENT),
            b"\0\x08" + key_text("g") + key_text("m"),
            b"\0\0" + b"\0\0\0\5" + b"\0\0\0\4" + b"\1" + partitions(0, 1) + partitions(2) + b"\0",
        ),
    ],
)  # fmt: skip
def test_records_lie_as_in_kafka(record: ConsumerGroupRecord, key: bytes, value: bytes) -> None:
    assert encode_record(record) == (key, value)


@pytest.mark.parametrize(
    "record",
    [
        ConsumerGroupRemoved("g"),
        ConsumerMemberRemoved("g", "m"),
        TargetEpochRemoved("g"),
        TargetRemoved("g", "m"),
        CurrentRemoved("g", "m"),
    ],
)
def test_tombstones_have_no_value(record: ConsumerGroupRecord) -> None:
    assert encode_record(record)[1] is None


def test_a_state_that_is_not_known_is_refused() -> None:
    key, value = encode_record(CurrentStored("g", "m", CurrentAssignment()))
    assert value is not None
    with pytest.raises(UnknownGroupRecord, match="127"):
        decode_record(key, value[:10] + b"\x7f" + value[11:])


@pytest.mark.parametrize("version", [3, 5, 6, 7, 8])
def test_malformed_records_are_refused(version: int) -> None:
    key = (
        version.to_bytes(2, "big")
        + key_text("g")
        + (key_text("m") if version in (5, 7, 8) else b"")
    )
    with pytest.raises(UnknownGroupRecord, match="does not decode"):
        decode_record(key, b"\0\0")
    with pytest.raises(UnknownGroupRecord, match="does not decode"):
        decode_record(key, b"\0\1")
    with pytest.raises(UnknownGroupRecord, match="does not decode"):
        decode_record(key + b"more", None)
