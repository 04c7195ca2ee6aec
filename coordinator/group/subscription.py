"""Subscriptions and assignments of consumers, as far as a coordinator has to look into them."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

_INT16 = Struct(">h")
_INT32 = Struct(">i")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member with protocol type "consumer" subscribes to; None where its
    metadata is not what Kafka's consumers write (then it may subscribe to any)."""
    try:
        version = _INT16.unpack_from(metadata)[0]
        count = _INT32.unpack_from(metadata, 2)[0]
        position = 6
        if version < 0 or count < 0:
            return None
        topics = set()
        for _ in range(count):
            end = position + 2 + _INT16.unpack_from(metadata, position)[0]
            if not position + 2 <= end <= len(metadata):
                return None
            topics.add(metadata[position + 2 : end].decode())
            position = end
    except (StructError, UnicodeDecodeError):
        return None
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]] | None:
    """The partitions in the assignment of a member with protocol type "consumer"; None where it is
    not what Kafka's consumers write. What only the assignor understands is passed over."""
    partitions: list[tuple[str, int]] = []
    try:
        if _INT16.unpack_from(assignment)[0] < 0:
            return None
        position = 6
        for _ in range(_INT32.unpack_from(assignment, 2)[0]):
            begin = position + _INT16.size
            end = begin + _INT16.unpack_from(assignment, position)[0]
            count = _INT32.unpack_from(assignment, end)[0]
            if end < begin or count < 0:
                return None
            topic = assignment[begin:end].decode()
            numbers = Struct(f">{count}i").unpack_from(assignment, end + _INT32.size)
            partitions += [(topic, number) for number in numbers]
            position = end + _INT32.size * (1 + count)
    except (StructError, UnicodeDecodeError, OverflowError):
        return None
    return partitions
