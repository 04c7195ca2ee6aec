"""The controller mutations of one request against its client's quota (KIP-599)."""

from __future__ import annotations

from uuid import UUID

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.broker.topics.topic_creation import TopicRefused
from tidelog.protocol.error_codes import ErrorCode


class Mutations:
    """Permits the changes of topics that the quota allows.

    A quota below nothing refuses all. So the change that exhausts it is the last one, whatever its
    size. Clients of old versions do not know the refusal: their changes are permitted, and they
    wait afterwards.
    """

    def __init__(
        self,
        broker: ClusterServices,
        context: RequestContext,
        refused_from: int,
        refusal: ErrorCode = ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ) -> None:
        """`refused_from`: the first version whose clients know the refusal."""
        quotas = broker.quotas
        self._client = (
            quotas.of(context.principal.name, context.client_id) if quotas.active else None
        )
        self._clock = broker.clock
        self._refuses = context.api_version >= refused_from
        self._refusal = refusal
        self._has_refused = False
        self._permitted: dict[str | UUID, bool] = {}

    def permit(self, topic: str | UUID, partitions: int) -> None:
        """Charge the partitions. Raises TopicRefused.

        A change may be planned several times: each topic is charged once.
        """
        meter = None if self._client is None else self._client.mutations
        if meter is None:
            return
        if topic not in self._permitted:
            now = self._clock.monotonic()
            permitted = not (self._refuses and meter.seconds_over(now))
            if permitted:
                meter.charge(partitions, now)
            self._permitted[topic] = permitted
        if not self._permitted[topic]:
            self._has_refused = True
            raise TopicRefused(self._refusal, "The throttling quota has been exceeded.")

    @property
    def throttle_ms(self) -> int:
        """How long the client has to wait."""
        if self._client is None or (self._refuses and not self._has_refused):
            return 0
        return self._client.mutation_ms(self._clock.monotonic())
