"""Decides which requests of a connection may run side by side. Pure.

An answer must show the effects of all earlier requests of its connection. So a request begins when
all before it are answered, as in Kafka. `SIDE_BY_SIDE` lists the exceptions, each for one of these
reasons:

- The handlers take effect when called, in that order, and a later one builds on the earlier ones.
  That holds for appends to partitions, and for decisions of a group's or a transactional id's
  coordinator. Such a coordinator answers when all of its earlier decisions are durable.
- The one request shows nothing that the other changes.

A Produce with acks 0 ends before its records are durable. A later request that must see them begins
when they are: `must_settle` tells the connection to wait for that first.
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
"""Requests that the group's coordinator decides when the handler is called.

ConsumerGroupHeartbeat and OffsetFetch do not belong here: their handlers wait for turns first.
"""
_ENLISTING: Final = frozenset(
    {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT}
)
"""Requests that a producer sends while batches of its transaction are on their way."""
_PRODUCE: Final = frozenset({ApiKey.PRODUCE})
_NOTHING: Final[frozenset[int]] = frozenset()

SIDE_BY_SIDE: Final[Mapping[int, frozenset[int]]] = {
    ApiKey.PRODUCE: _PRODUCE | _ENLISTING,
    **dict.fromkeys(_ENLISTING, _PRODUCE),
    # Other brokers send these one after the other, for many transactions.
    ApiKey.ADD_PARTITIONS_TO_TXN: _PRODUCE | {ApiKey.ADD_PARTITIONS_TO_TXN},
    ApiKey.WRITE_TXN_MARKERS: frozenset({ApiKey.WRITE_TXN_MARKERS}),
    **dict.fromkeys(_GROUP, _GROUP),
    # They show the cluster, which the other requests do not change.
    **dict.fromkeys((ApiKey.METADATA, ApiKey.FIND_COORDINATOR), _PRODUCE | _GROUP),
}
"""By a request's API: the APIs that may still be in service when it begins."""


class RequestOrder:
    """The requests of one connection that are in service, by their APIs."""

    def __init__(self) -> None:
        self._in_service: dict[int, int] = {}
        self._is_unsettled = False

    def may_begin(self, api_key: int) -> bool:
        """Whether a request may begin now."""
        beside = SIDE_BY_SIDE.get(api_key, _NOTHING)
        return self._in_service.keys() <= beside and (
            not self._is_unsettled or ApiKey.PRODUCE in beside
        )

    def must_settle(self, api_key: int) -> bool:
        """Whether a request may begin once all requests without an answer are durable."""
        beside = SIDE_BY_SIDE.get(api_key, _NOTHING)
        return (
            self._is_unsettled
            and ApiKey.PRODUCE not in beside
            and self._in_service.keys() <= beside
        )

    def begin(self, api_key: int) -> None:
        """A request is in service."""
        self._in_service[api_key] = self._in_service.get(api_key, 0) + 1

    def end(self, api_key: int, *, is_answered: bool) -> None:
        """A request is over. Without an answer its effects may not be durable yet."""
        if not is_answered:
            self._is_unsettled = True
        left = self._in_service[api_key] - 1
        if left:
            self._in_service[api_key] = left
        else:
            del self._in_service[api_key]

    def settle(self) -> None:
        """The effects of requests without an answer are durable."""
        self._is_unsettled = False
