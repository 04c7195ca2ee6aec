"""Partitions by key: Kafka's hashes. Many keys at once get the same partitions as single keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.partitioner import murmur2, partition_of, positive_hashes

SIGNED = 2**32
keys = st.none() | st.binary(max_size=40) | st.binary(min_size=1000, max_size=1100)


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)
def test_hashes_are_those_of_kafkas_own_tests(key: bytes, hash_: int) -> None:
    assert murmur2(key) == hash_ % SIGNED


@given(st.lists(keys, max_size=30), st.integers(0, 5))
def test_many_keys_have_the_partitions_that_each_has(found: list[bytes | None], skip: int) -> None:
    array = pa.array(found, pa.binary()).slice(skip)
    hashes = positive_hashes(array)
    assert len(hashes) == len(array)
    assert (hashes >= 0).all()
    for key, hash_ in zip(found[skip:], hashes, strict=True):
        if key is not None:
            assert hash_ % 7 == partition_of(key, 7)
