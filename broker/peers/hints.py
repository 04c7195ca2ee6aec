"""MetadataMoved: tells other brokers to read the metadata log now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.protocol.schemas.own.metadata_moved import MetadataMovedRequest, MetadataMovedResponse


class HintForm:
    """Hints of several entries in one request: the newest one replaces the others.

    A lost hint does no harm. Each broker reads the log at every heartbeat, and before it refuses a
    request that a newer view might allow.
    """

    purpose: Final = "hints"

    def size(self, item: int) -> int:
        return 0

    def request(self, items: Sequence[int]) -> MetadataMovedRequest:
        return MetadataMovedRequest(sequence=max(items))

    def replies(self, items: Sequence[int], response: MetadataMovedResponse) -> list[None]:
        return [None] * len(items)
