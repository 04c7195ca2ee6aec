"""Kafka's default partitioner: murmur2 over the key, so that all clients agree on its partition."""

from __future__ import annotations

from struct import Struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORD = Struct("<I")


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
    """The partition that a record with this key goes to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
