"""ListPartitionReassignments between brokers: a move's giver and its receiver know of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.errors import Refused
from tidelog.identifiers import BrokerId
from tidelog.protocol.error_codes import ErrorCode, error_name
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.schemas.cluster.replicas import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


class MoveUnderWay(NamedTuple):
    """A partition that one broker gives and the other does not serve yet."""

    topic: str
    partition: int
    giver: BrokerId
    receiver: BrokerId


class ReassignmentForm:
    """All operators that wait for one broker share a request, which changes nothing."""

    purpose: Final = "reassignments"

    def size(self, item: None) -> int:
        return 1

    def request(self, items: Sequence[None]) -> ListPartitionReassignmentsRequest:
        return ListPartitionReassignmentsRequest(topics=None, is_forwarded=True)

    def replies(
        self, items: Sequence[None], response: ListPartitionReassignmentsResponse
    ) -> list[tuple[MoveUnderWay, ...]]:
        if response.error_code != ErrorCode.NONE:
            raise Refused(response.error_message or error_name(response.error_code))
        found = []
        for topic in response.topics:
            for each in topic.partitions:
                if len(each.adding_replicas) != 1 or len(each.removing_replicas) != 1:
                    raise MalformedMessage(f"a move of {topic.name} has no giver or no receiver")
                giver, receiver = each.removing_replicas[0], each.adding_replicas[0]
                found.append(
                    MoveUnderWay(
                        topic.name, each.partition_index, BrokerId(giver), BrokerId(receiver)
                    )
                )
        return [tuple(found)] * len(items)
