"""The partition of an internal topic that coordinates a group or a transactional id."""

from __future__ import annotations

from functools import lru_cache
from struct import iter_unpack
from typing import Final

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_HASHES_KEPT: Final = 4096
_KEPT_KEY_LENGTH_MAX: Final = 256
"""Clients choose their keys: the hashes of longer ones are not kept."""


def partition_for(key: str, partition_count: int) -> int:
    """Kafka's function: the absolute value of Java's string hash, modulo the number of partitions.

    The absolute value of the lowest integer is 0.
    """
    is_kept = len(key) <= _KEPT_KEY_LENGTH_MAX
    hashed = _kept_hash(key) if is_kept else _absolute_hash(key)
    return hashed % partition_count


def _absolute_hash(key: str) -> int:
    value = 0
    for (unit,) in iter_unpack(">H", key.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & _MASK
    if value & _SIGN:
        value = (1 << 32) - value
    return 0 if value == _SIGN else value


_kept_hash = lru_cache(_HASHES_KEPT)(_absolute_hash)
"""A broker asks for the same few keys again and again."""
