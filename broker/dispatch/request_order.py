"""Which requests of a connection may be served side by side. Pure.

An answer never shows less than the requests before it on its connection have done. So a request
begins when all before it are answered, as in Kafka. `SIDE_BY_SIDE` lists the exceptions; each has
one of these reasons:

- The handlers take effect when they are called, in that order, and one that is called later rests
  on those before it: appends to partitions, and what the coordinator of a group or of a
  transactional id decides. Such a coordinator answers when all that it decided before is durable.
- What the one shows is nothing that the other changes.

A Produce with acks 0 is over before its records are durable. A request that is to see them begins
when they are: then `must_settle` tells the connection to wait for that first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.protocol.api import ApiKey

_GROUP: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_DELETE,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
    }
)
"""Decided at once by the group's coordinator, when the handler is called. ConsumerGroupHeartbeat
and OffsetFetch are not: their handlers wait for their turns before they ask."""
_ENLISTING: Final = frozenset(
    {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT}
)
"""What a producer sends of a transaction while its batches are on their way."""
_PRODUCE: Final = frozenset({ApiKey.PRODUCE})
_NOTHING: Final[frozenset[int]] = frozenset()

SIDE_BY_SIDE: Final[Mapping[int, frozenset[int]]] = {
    ApiKey.PRODUCE: _PRODUCE | _ENLISTING,
    **dict.fromkeys(_ENLISTING, _PRODUCE),
    **dict.fromkeys(_GROUP, _GROUP),
    # They show the cluster, of which the others change nothing.
    **dict.fromkeys((ApiKey.METADATA, ApiKey.FIND_COORDINATOR), _PRODUCE | _GROUP),
}
"""By the API of a request: those that may still be in service when it begins."""


class RequestOrder:
    """The requests of one connection that are in service, by their APIs."""

    def __init__(self) -> None:
        self._in_service: dict[int, int] = {}
        self._is_unsettled = False

    def admits(self, api_key: int) -> bool:
        """Whether a request may begin now."""
        return self._joins(api_key) and not (self._is_unsettled and self.must_settle(api_key))

    def must_settle(self, api_key: int) -> bool:
        """Whether a request may begin once what was done without an answer is durable."""
        return (
            self._is_unsettled
            and ApiKey.PRODUCE not in SIDE_BY_SIDE.get(api_key, _NOTHING)
            and self._joins(api_key)
        )

    def begin(self, api_key: int) -> None:
        """A request is in service."""
        self._in_service[api_key] = self._in_service.get(api_key, 0) + 1

    def end(self, api_key: int, *, is_answered: bool) -> None:
        """It is over; without an answer what it has done may not be durable yet."""
        if not is_answered:
            self._is_unsettled = True
        left = self._in_service[api_key] - 1
        if left:
            self._in_service[api_key] = left
        else:
            del self._in_service[api_key]

    def settle(self) -> None:
        """What was done without an answer is durable."""
        self._is_unsettled = False

    def _joins(self, api_key: int) -> bool:
        return self._in_service.keys() <= SIDE_BY_SIDE.get(api_key, _NOTHING)
