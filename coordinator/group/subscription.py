"""The topics of a consumer's subscription, as far as a coordinator has to look into it."""

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
