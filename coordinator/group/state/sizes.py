"""The approximate memory of groups' data: Python's objects, and the bytes and texts in them.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.coordinator.group.records.consumer_records import Assignment, ConsumerSubscription
from tidelog.coordinator.group.records.log_records import CommittedOffset
from tidelog.coordinator.group.records.subscription import SupportedProtocol

GROUP_BYTES: Final = 2_000
MEMBER_BYTES: Final = 1_500
ID_BYTES: Final = 300
"""A pending member id."""
PROTOCOL_BYTES: Final = 150
TOPIC_NAME_BYTES: Final = 60
ASSIGNED_TOPIC_BYTES: Final = 300
ASSIGNED_PARTITION_BYTES: Final = 100
OFFSET_BYTES: Final = 500
PENDING_BYTES: Final = 950


def texts_bytes(*texts: str | None) -> int:
    """The bytes of those texts that are not None."""
    return sum([len(text) for text in texts if text])


def protocols_bytes(protocols: Iterable[SupportedProtocol]) -> int:
    """The bytes of a classic member's protocols."""
    return sum([PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols])


def names_bytes(names: Iterable[str]) -> int:
    """The bytes of a member's subscribed topics."""
    return sum([TOPIC_NAME_BYTES + len(name) for name in names])


def subscription_bytes(said: ConsumerSubscription) -> int:
    """The bytes of a consumer group's member, without its id and its assignments."""
    texts = texts_bytes(
        said.instance_id, said.rack_id, said.client_id, said.client_host, said.topic_regex
    )
    classic = 0 if said.classic is None else protocols_bytes(said.classic.protocols)
    return MEMBER_BYTES + texts + names_bytes(said.topic_names) + classic


def assignment_bytes(assignment: Assignment) -> int:
    """The bytes of an assignment."""
    partitions = sum(map(len, assignment.values()))
    return len(assignment) * ASSIGNED_TOPIC_BYTES + partitions * ASSIGNED_PARTITION_BYTES


def offset_bytes(committed: CommittedOffset | None) -> int:
    """The bytes of a committed offset; 0 for None."""
    return 0 if committed is None else OFFSET_BYTES + len(committed.metadata)


def pending_bytes(committed: CommittedOffset | None) -> int:
    """The bytes of a pending offset; None if it is superseded."""
    return PENDING_BYTES + (0 if committed is None else len(committed.metadata))
