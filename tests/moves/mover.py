"""Moves every partition of a cluster again and again, including those of coordinators."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from tidelog.cli.broker_client import new_client
from tidelog.client.admin.administration import list_topics
from tidelog.client.pool import Client
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

ROUND_SECONDS = 1.0


class Mover(threading.Thread):
    """Gives each partition to the next broker, once in a round, until `end` is called."""

    def __init__(self, bootstrap: str, brokers: int, still: Sequence[str] = ()) -> None:
        """`still`: topics that are not moved."""
        super().__init__()
        host, port = bootstrap.split(",")[0].split(":")
        self._address = host, int(port)
        self._brokers = brokers
        self._still = still
        self._ends = threading.Event()
        self.rounds = 0
        self.moves: Counter[str] = Counter()
        """Changes of the leader of each topic's partitions, by the leader epochs."""
        self.refusals: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - `end` raises it in the test's thread
            self.failure = error

    def end(self) -> None:
        """Stop moving. Raises the error that ended the thread."""
        self._ends.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    async def _run(self) -> None:
        async with new_client((self._address,)) as client:
            first = await _epochs(client)
            while not self._ends.is_set():
                await self._round(client)
                await asyncio.to_thread(self._ends.wait, ROUND_SECONDS)
            for (topic, partition), epoch in (await _epochs(client)).items():
                self.moves[topic] += epoch - first.get((topic, partition), 0)

    async def _round(self, client: Client) -> None:
        wanted = [
            ReassignableTopic(
                name=topic.name,
                partitions=[
                    ReassignablePartition(
                        partition_index=each.partition,
                        replicas=[(each.leader_id + 1) % self._brokers],
                    )
                    for each in topic.partitions.values()
                ],
            )
            for topic in await list_topics(client)
            if topic.name not in self._still
        ]
        request = AlterPartitionReassignmentsRequest(topics=wanted, timeout_ms=30_000)
        for topic in (await client.request_any(request)).responses:
            for each in topic.partitions:
                if each.error_code:
                    self.refusals[ErrorCode(each.error_code).name] += 1
        self.rounds += 1


async def _epochs(client: Client) -> Mapping[tuple[str, int], int]:
    return {
        (topic.name, each.partition): each.leader_epoch
        for topic in await list_topics(client)
        for each in topic.partitions.values()
    }
