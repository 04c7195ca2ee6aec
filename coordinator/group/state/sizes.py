"""What is kept of groups takes so much memory, about: what Python's objects cost, and the bytes and
texts in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.coordinator.group.records.consumer_records import Assignment, ConsumerSubscription
from tidelog.coordinator.group.records.log_records import CommittedOffset
from tidelog.coordinator.group.records.subscription import SupportedProtocol

GROUP_BYTES: Final = 2_000
MEMBER_BYTES: Final = 1_500
ID_BYTES: Final = 300
"""An id that was given out and has not come back."""
PROTOCOL_BYTES: Final = 150
TOPIC_NAME_BYTES: Final = 60
ASSIGNED_TOPIC_BYTES: Final = 300
ASSIGNED_PARTITION_BYTES: Final = 100
OFFSET_BYTES: Final = 500
PENDING_BYTES: Final = 950


def texts_bytes(*texts: str | None) -> int:
    """Of the texts that are there."""
    return sum([len(text) for text in texts if text])


def protocols_bytes(protocols: Iterable[SupportedProtocol]) -> int:
    """Of what a member of the classic protocol says of itself."""
    return sum([PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols])


def names_bytes(names: Iterable[str]) -> int:
    """Of the topics that a member subscribes to."""
    return sum([TOPIC_NAME_BYTES + len(name) for name in names])


def subscription_bytes(said: ConsumerSubscription) -> int:
    """Of a member of a consumer group, without its id and what it has."""
    texts = texts_bytes(
        said.instance_id, said.rack_id, said.client_id, said.client_host, said.topic_regex
    )
    classic = 0 if said.classic is None else protocols_bytes(said.classic.protocols)
    return MEMBER_BYTES + texts + names_bytes(said.topic_names) + classic


def assignment_bytes(assignment: Assignment) -> int:
    """Of the partitions that a member has, or is to have."""
    partitions = sum(map(len, assignment.values()))
    return len(assignment) * ASSIGNED_TOPIC_BYTES + partitions * ASSIGNED_PARTITION_BYTES


def offset_bytes(committed: CommittedOffset | None) -> int:
    """Of a committed offset; 0 where there is none."""
    return 0 if committed is None else OFFSET_BYTES + len(committed.metadata)


def pending_bytes(committed: CommittedOffset | None) -> int:
    """Of an offset in an open transaction; None where it will not count any more."""
    return PENDING_BYTES + (0 if committed is None else len(committed.metadata))
