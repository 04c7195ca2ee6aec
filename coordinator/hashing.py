"""The partition of an internal topic that coordinates a group or a transactional id."""

from __future__ import annotations

from struct import iter_unpack

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000


def partition_for(key: str, partition_count: int) -> int:
    """Kafka's function: the absolute value of Java's string hash, modulo the number of partitions.

    The absolute value of the lowest integer is 0.
    """
    value = 0
    for (unit,) in iter_unpack(">H", key.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & _MASK
    if value & _SIGN:
        value = (1 << 32) - value
    return 0 if value == _SIGN else value % partition_count
