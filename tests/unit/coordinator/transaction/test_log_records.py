"""The records of `__transaction_state`: as Kafka writes them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.transaction.log_records import (
    STORED_STATES,
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
    UnknownTransactionRecord,
    decode_record,
    encode_record,
)
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.identifiers import ProducerEpoch, ProducerId

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = st.integers(0, 2**63 - 1)
PARTITIONS = st.builds(EnlistedPartition, TEXT, INT32)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(list(STORED_STATES.values())))
    sizes = {TransactionState.EMPTY: (0, 0), TransactionState.ONGOING: (1, 5)}
    at_least, at_most = sizes.get(state, (0, 5))
    return Transaction(
        producer_id=ProducerId(draw(IDS)),
        producer_epoch=ProducerEpoch(draw(INT16)),
        state=state,
        timeout_ms=draw(INT32),
        updated_ms=draw(INT64),
        begun_ms=draw(st.integers(-1, 2**63 - 1)),
        partitions=draw(st.frozensets(PARTITIONS, min_size=at_least, max_size=at_most)),
        previous_producer_id=ProducerId(draw(INT64)),
        next_producer_id=ProducerId(draw(INT64)),
        last_epoch=ProducerEpoch(draw(INT16)),
        ordinal=draw(INT64),
        client_version=draw(INT16),
    )


RECORDS = st.builds(TransactionStored, TEXT, transactions()) | st.builds(TransactionRemoved, TEXT)


@given(RECORDS)
def test_encoded_records_decode(record: TransactionRecord) -> None:
    assert decode_record(*encode_record(record)) == record


KEY = bytes.fromhex("0000 0005 7478 2d c3bc")
EMPTY = Transaction(
    producer_id=ProducerId(1234567890123),
    producer_epoch=ProducerEpoch(7),
    state=TransactionState.EMPTY,
    timeout_ms=60_000,
    updated_ms=1_700_000_000_000,
    previous_producer_id=ProducerId(99),
)
PREPARED = Transaction(
    producer_id=ProducerId(5),
    producer_epoch=ProducerEpoch(32767),
    state=TransactionState.PREPARE_COMMIT,
    timeout_ms=1000,
    updated_ms=1_700_000_000_001,
    begun_ms=1_700_000_000_000,
    partitions=frozenset(EnlistedPartition(*each) for each in (("a", 0), ("a", 2), ("b", 1))),
    previous_producer_id=ProducerId(5),
    next_producer_id=ProducerId(6),
    client_version=2,
)
EMPTY_V0 = "0000 0000011f71fb04cb 0007 0000ea60 00 ffffffff 0000018bcfe56800 ffffffffffffffff"
EMPTY_V1 = (
    "0001 0000011f71fb04cb 0007 0000ea60 00 00 0000018bcfe56800 ffffffffffffffff"
    "01 00 08 0000000000000063"
)
PREPARED_V0 = (
    "0000 0000000000000005 7fff 000003e8 02"
    "00000002 0001 61 00000002 00000000 00000002 0001 62 00000001 00000001"
    "0000018bcfe56801 0000018bcfe56800"
)
PREPARED_V1 = (
    "0001 0000000000000005 7fff 000003e8 02"
    "03 02 61 03 00000000 00000002 00 02 62 02 00000001 00"
    "0000018bcfe56801 0000018bcfe56800"
    "03 00 08 0000000000000005 01 08 0000000000000006 02 02 0002"
)


@pytest.mark.parametrize(("transaction", "value"), [(EMPTY, EMPTY_V1), (PREPARED, PREPARED_V1)])
def test_a_transaction_is_byte_for_byte_the_record_that_kafka_writes(
    transaction: Transaction, value: str
) -> None:
    """Kafka 4.1's own TransactionLogValue wrote these bytes."""
    record = TransactionStored("tx-ü", transaction)
    assert encode_record(record) == (KEY, bytes.fromhex(value))
    assert decode_record(KEY, bytes.fromhex(value)) == record


@pytest.mark.parametrize(("transaction", "value"), [(EMPTY, EMPTY_V0), (PREPARED, PREPARED_V0)])
def test_a_value_of_the_first_version_is_read(transaction: Transaction, value: str) -> None:
    found = decode_record(KEY, bytes.fromhex(value))
    none = ProducerId(-1)
    expected = transaction._replace(
        previous_producer_id=none, next_producer_id=none, client_version=0
    )
    assert found == TransactionStored("tx-ü", expected)


def test_own_fields_lie_in_tags_that_kafka_skips() -> None:
    ours = EMPTY._replace(ordinal=9, last_epoch=ProducerEpoch(6))
    _, value = encode_record(TransactionStored("t", ours))
    assert value is not None
    tags = "03 00 08 0000000000000063 904e 08 0000000000000009 914e 02 0006"
    assert value == bytes.fromhex(EMPTY_V1)[: -len(bytes.fromhex("01 00 08 0000000000000063"))] + (
        bytes.fromhex(tags)
    )


def test_a_tombstone_has_no_value() -> None:
    assert encode_record(TransactionRemoved("tx-ü")) == (KEY, None)


def changed(value: str, position: int, byte: int) -> bytes:
    data = bytearray.fromhex(value)
    data[position] = byte
    return bytes(data)


STATUS_AT = 16


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (None, b"", "no key"),
        (b"\0", b"", "does not decode"),
        (b"\0\1" + KEY[2:], b"", "does not decode"),
        (KEY + b"more", None, "does not decode"),
        (KEY, b"", "does not decode"),
        (KEY, b"\0\2", "does not decode"),
        (KEY, bytes.fromhex(PREPARED_V1)[:-1], "does not decode"),
        (KEY, changed(PREPARED_V1, STATUS_AT, 6), "state 6, which is never stored"),
        (KEY, changed(PREPARED_V1, STATUS_AT, 7), "state 7, which is never stored"),
        (KEY, changed(PREPARED_V1, STATUS_AT, 9), "state 9, which is never stored"),
        (KEY, changed(PREPARED_V1, STATUS_AT, 0), "Empty with 3 partitions"),
        (KEY, changed(EMPTY_V1, STATUS_AT, 1), "Ongoing with 0 partitions"),
        (KEY, changed(EMPTY_V1, 2, 0x80), "producer id -"),
    ],
)
def test_malformed_records_are_refused(key: bytes | None, value: bytes | None, said: str) -> None:
    with pytest.raises(UnknownTransactionRecord, match=said):
        decode_record(key, value)
