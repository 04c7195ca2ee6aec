"""Kafka's default partitioner (murmur2 of the key), so that all clients choose the same
partition.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
import pyarrow as pa

from tidelog.records.parse.row_arrays import element_offsets
from tidelog.records.parse.varints import Bytes, Integers

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_WORD = Struct("<I")
_TOGETHER_BYTES_MAX = 1024
"""Longer keys are rare and hashed singly; shorter ones are hashed together, word by word."""


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash with Kafka's seed, unsigned."""
    length = len(data)
    state = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = _WORD.unpack_from(data, position)[0] * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if length > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key."""
    return (murmur2(key) & _POSITIVE) % partitions


def positive_hashes(keys: pa.BinaryArray) -> Integers:
    """The hash of each key that `partition_of` takes modulo the number of partitions.

    For a null key the hash is any number from 0 on.
    """
    offsets = element_offsets(keys).astype(np.int64)
    start, length = offsets[:-1], np.diff(offsets)
    buffer = keys.buffers()[2]
    data = np.frombuffer(b"" if buffer is None else buffer, np.uint8)
    found = np.zeros(len(keys), np.int64)
    together = np.flatnonzero(length <= _TOGETHER_BYTES_MAX)
    # The longest first: keys with a further word come before keys without one.
    together = together[np.argsort(-length[together], kind="stable")]
    found[together] = _hashed(data, start[together], length[together])
    for row in np.flatnonzero(length > _TOGETHER_BYTES_MAX):
        found[row] = murmur2(data[start[row] : start[row] + length[row]].tobytes())
    return found & _POSITIVE


def _hashed(data: Bytes, start: Integers, length: Integers) -> Integers:
    """murmur2 of byte ranges in order of descending length."""
    multiplier = np.uint32(_MULTIPLIER)
    state = length.astype(np.uint32) ^ np.uint32(_SEED)
    words = length >> 2
    for number in range(int(words[0]) if len(words) else 0):
        live = int(np.searchsorted(-words, -number, side="left"))
        at = start[:live] + 4 * number
        word = np.zeros(live, np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        word *= multiplier
        word = (word ^ word >> np.uint32(24)) * multiplier
        state[:live] = state[:live] * multiplier ^ word
    rest = length & 3
    for byte in range(3):
        having = np.flatnonzero(rest > byte)
        at = start[having] + 4 * words[having] + byte
        state[having] ^= data[at].astype(np.uint32) << np.uint32(8 * byte)
    state[rest > 0] *= multiplier
    state = (state ^ state >> np.uint32(13)) * multiplier
    return (state ^ state >> np.uint32(15)).astype(np.int64)
