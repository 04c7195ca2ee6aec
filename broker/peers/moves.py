"""AlterPartitionReassignments between brokers: only its owner can give a partition away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tidelog.broker.peers.enlistments import code_of
from tidelog.identifiers import BrokerId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)


class Move(NamedTuple):
    """A partition that shall go to a broker."""

    topic: str
    partition: int
    receiver: BrokerId


class MoveOutcome(NamedTuple):
    """The owner's answer. NONE: the move is in the metadata log, or was not needed."""

    code: ErrorCode
    message: str | None = None


class MoveForm:
    """Moves of several partitions in one request.

    A repeated request does no harm: the partition is with its receiver, or its owner gives it away
    then. A late answer tells of a move that was appended, whatever happened since.

    Of moves of one partition to several receivers the request has the first one.
    """

    purpose: Final = "moves"

    def size(self, item: Move) -> int:
        return 1

    def request(self, items: Sequence[Move]) -> AlterPartitionReassignmentsRequest:
        topics: dict[str, list[ReassignablePartition]] = {}
        for item in _first_moves(items).values():
            topics.setdefault(item.topic, []).append(
                ReassignablePartition(partition_index=item.partition, replicas=[int(item.receiver)])
            )
        return AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name=name, partitions=partitions)
                for name, partitions in topics.items()
            ],
            is_forwarded=True,
        )

    def replies(
        self, items: Sequence[Move], response: AlterPartitionReassignmentsResponse
    ) -> list[MoveOutcome]:
        """Each move's outcome. An error of the whole request is that of each move."""
        if response.error_code != ErrorCode.NONE:
            refused = MoveOutcome(code_of(response.error_code), response.error_message)
            return [refused] * len(items)
        found = {
            (topic.name, each.partition_index): each
            for topic in response.responses
            for each in topic.partitions
        }
        asked, outcomes = _first_moves(items), []
        for item in items:
            first = asked[item.topic, item.partition]
            if item != first:
                why = f"the partition was asked to move to broker {first.receiver}; try again"
                outcomes.append(MoveOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, why))
                continue
            result = found.get((item.topic, item.partition))
            if result is None:
                raise MalformedMessage(f"no result answers {item}")
            outcomes.append(MoveOutcome(code_of(result.error_code), result.error_message))
        return outcomes


def _first_moves(items: Iterable[Move]) -> dict[tuple[str, int], Move]:
    first: dict[tuple[str, int], Move] = {}
    for item in items:
        first.setdefault((item.topic, item.partition), item)
    return first
