"""Charges a request to the quotas of its client, and tells the client how long it has to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.handlers.error_responses import first_code
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.stopwatch import Stopwatch
from tidelog.clock import Clock
from tidelog.protocol.api import ApiKey, OwnApiKey
from tidelog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.dispatch.dispatcher import OpenedRequest

_BETWEEN_BROKERS: Final = frozenset({ApiKey.WRITE_TXN_MARKERS, OwnApiKey.METADATA_MOVED})
_BROKERS_ADD_PARTITIONS_FROM: Final = 4


class Charge:
    """One request's use of quotas."""

    __slots__ = ("_clock", "_opened", "_quotas", "stopwatch")

    def __init__(self, quotas: ClientQuotas, clock: Clock, opened: OpenedRequest) -> None:
        self._quotas = quotas
        self._clock = clock
        self._opened = opened
        self.stopwatch = Stopwatch(clock)

    def made(self, response: Any) -> int:
        """Charge the served request; the milliseconds that its connection has to wait.

        `response`: None if there is none. The handler may have set its throttle time; this method
        raises it to the longest one.
        """
        opened = self._opened
        if _is_between_brokers(opened) and not _is_refused(response):
            return 0
        context, now = opened.context, self._clock.monotonic()
        client = self._quotas.of(context.principal.name, context.client_id)
        waits_ms: int = getattr(response, "throttle_time_ms", 0)
        if opened.route.api_key == ApiKey.PRODUCE:
            waits_ms = max(waits_ms, client.produce_ms(opened.size, now))
        if response is not None:
            waits_ms = max(waits_ms, client.request_ms(self.stopwatch.seconds, now))
            if waits_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = waits_ms
        return waits_ms


def _is_refused(response: Any) -> bool:
    """Whether the sender is no broker: it lacks the permission, or asked for nothing."""
    code = None if response is None else first_code(response)
    return code in (None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _is_between_brokers(opened: OpenedRequest) -> bool:
    """Whether brokers send such requests to each other; those have no quota, as in Kafka."""
    key = opened.route.api_key
    if key == ApiKey.ADD_PARTITIONS_TO_TXN:
        return opened.context.api_version >= _BROKERS_ADD_PARTITIONS_FROM
    return key in _BETWEEN_BROKERS or getattr(opened.message, "is_forwarded", False)
