"""Publishes a stream's progress as offsets of a consumer group, so that Kafka's tools show its lag.

The publisher publishes only offsets in Spark's commit log: Spark requests the next batch from the
end of the last committed one. If the driver dies before that request, nothing of the batch is
published. If it dies later, the restarted query's first request publishes it.

The stream never reads these offsets: it continues from its checkpoint. So a replaced driver that
resumes, or a reset of the group, may set the shown offsets back until the query publishes again. No
record is read twice or lost because of that.

A read needs no broker, and publishing does not change that. If publishing fails, the driver logs a
warning and the publisher tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.client.errors import NoCommonVersion, RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place, commit_offsets
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.references import resolved_values
from tidelog.spark_source.session import Session
from tidelog.spark_source.stream.progress import StreamOffsets

INTERVAL_SECONDS: Final = 1.0
"""The least time between two publications, so that many small batches do not each wait."""
AGAIN_SECONDS: Final = 3600.0
"""An idle query republishes its offsets after this time, so that they do not expire."""
PAUSE_SECONDS: Final = 30.0
"""The pause after a failure."""
TIMEOUT_SECONDS: Final = 5.0
"""The longest wait of a batch for the brokers."""

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the progress of one query at intervals."""

    def __init__(
        self,
        group_id: str,
        bootstrap: Iterable[tuple[str, int]],
        security: Mapping[str, str],
        session: Session,
    ) -> None:
        """`security`: properties by confluent-kafka's names. Raises InvalidConfiguration."""
        self._settings = ClientSettings(
            client_id=f"tidelog-spark-{group_id}", security=security_of(resolved_values(security))
        )
        self._group_id = group_id
        self._bootstrap = list(bootstrap)
        self._session = session
        self._published: StreamOffsets | None = None
        self._next_at = self._paused_until = float("-inf")
        self._again_at = float("-inf")

    def publish(self, progress: StreamOffsets, *, at_once: bool = False) -> None:
        """Publish the committed progress if it has changed and the interval has passed.

        A later call publishes skipped progress. With `at_once` the interval does not apply: there
        may be no later call.
        """
        clock = self._session.clock
        now = clock.monotonic()
        if now < self._paused_until or (now < self._next_at and not at_once):
            return
        if progress == self._published and now < self._again_at:
            return
        try:
            self._session.run(self._commit(progress))
        except TimeoutError:
            self._failed(f"no broker has taken them within {TIMEOUT_SECONDS:g} s")
        except (RequestFailed, NoCommonVersion) as error:
            self._failed(str(error))
        except RequestRefused as error:
            hint = ""
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
                hint = "; consumers are at work in it: give publishGroupId a group of its own"
            self._failed(f"{error}{hint}")
        else:
            self._published = progress
            now = clock.monotonic()
            self._next_at, self._again_at = now + INTERVAL_SECONDS, now + AGAIN_SECONDS

    async def _commit(self, progress: StreamOffsets) -> None:
        names = {topic_id: name for name, topic_id in progress.topics.items()}
        offsets = {
            Place(names[partition.topic_id], partition.partition): offset
            for partition, offset in progress.offsets.items()
        }
        if not offsets:
            return
        async with asyncio.timeout(TIMEOUT_SECONDS):
            # A new connection each time: brokers close idle ones.
            async with Client(
                SocketNetwork(), self._session.clock, self._bootstrap, self._settings
            ) as client:
                await commit_offsets(client, self._group_id, offsets)

    def _failed(self, why: str) -> None:
        self._paused_until = self._session.clock.monotonic() + PAUSE_SECONDS
        logger.warning(
            "the query's progress was not published as offsets of group %s by %s: %s. The query"
            " goes on, and publishes again in %g s",
            self._group_id,
            ", ".join(f"{host}:{port}" for host, port in self._bootstrap),
            why,
            PAUSE_SECONDS,
        )
