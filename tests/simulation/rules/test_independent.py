"""The second decoder of record batches notices differences."""

from __future__ import annotations

import pytest

from tests.simulation.rules.independent import ReadersDisagree, compare
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch


def _batches() -> bytes:
    data = bytearray()
    for number, codec in enumerate(Compression):
        data += encode_batch(
            [NewRecord(b"value", b"key", timestamp=7 + index) for index in range(3)],
            compression=codec,
            base_offset=3 * number,
        )
    return bytes(data)


def test_both_read_the_same_records() -> None:
    data = _batches()
    compare(data, list(decode_records(data)))
    compare(data[:-5], list(decode_records(data[:-5])))


def test_a_record_that_only_one_reads_is_noticed() -> None:
    data = _batches()
    records = list(decode_records(data))
    with pytest.raises(ReadersDisagree, match="offset 0"):
        compare(data, records[1:])
    extra = records[-1]._replace(offset=99)
    with pytest.raises(ReadersDisagree, match="99"):
        compare(data, [*records, extra])


def test_a_value_that_differs_is_noticed() -> None:
    data = _batches()
    records = list(decode_records(data))
    with pytest.raises(ReadersDisagree, match="offset 0"):
        compare(data, [records[0]._replace(value=b"other"), *records[1:]])
