"""Consumers' subscriptions and assignments, as far as a coordinator reads them."""

from __future__ import annotations

from struct import error as StructError
from typing import Final, NamedTuple, TypeVar

from tidelog.coordinator.group.records.record_coding import VERSION, encoded
from tidelog.protocol.codec import decode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.fields import array, binary, int32, string
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.wire import Buffer

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VERSION_MAX = 3

M = TypeVar("M", bound=Message)


class SupportedProtocol(NamedTuple):
    """A protocol that a member supports, with its subscription, often opaque."""

    name: str
    metadata: bytes


class TopicPartitionNumbers(Struct):
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions=(0, _VERSION_MAX)):
    """The metadata of Kafka's consumers in a join."""

    topics: list[str] = array(string)
    user_data: Buffer | None = binary(nullable="0+", default=None)
    owned_partitions: list[TopicPartitionNumbers] = array(TopicPartitionNumbers, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Message, versions=(0, _VERSION_MAX)):
    """The assignment of Kafka's consumers. All versions are alike."""

    assigned_partitions: list[TopicPartitionNumbers] = array(TopicPartitionNumbers)
    user_data: Buffer | None = binary(nullable="0+", default=None)


class Subscription(NamedTuple):
    """A consumer's metadata: its topics, its owned partitions and its rack.

    `owned` is by topic; empty if the consumer does not report it.
    """

    topics: frozenset[str]
    owned: dict[str, frozenset[int]]
    rack_id: str | None


def subscription_in(metadata: bytes) -> Subscription | None:
    """The subscription of a member with protocol type "consumer".

    None if its metadata is not in the format of Kafka's consumers.
    """
    found = _decoded(ConsumerProtocolSubscription, metadata)
    if found is None:
        return None
    owned = {each.topic: frozenset(each.partitions) for each in found.owned_partitions}
    return Subscription(frozenset(found.topics), owned, found.rack_id)


def assignment_for(metadata: bytes, assigned: dict[str, frozenset[int]]) -> bytes:
    """An assignment in the version of the member's metadata."""
    version = min(VERSION.unpack_from(metadata)[0], _VERSION_MAX)
    topics = [
        TopicPartitionNumbers(topic=topic, partitions=sorted(numbers))
        for topic, numbers in sorted(assigned.items())
    ]
    return encoded(ConsumerProtocolAssignment(assigned_partitions=topics), version)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member with protocol type "consumer" subscribes to.

    None if its metadata is not in the format of Kafka's consumers; it may then subscribe to any
    topic.
    """
    found = subscription_in(metadata)
    return None if found is None else found.topics


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]] | None:
    """The partitions in the assignment of a member with protocol type "consumer".

    None if it is not in the format of Kafka's consumers. The assignor's user data is ignored.
    """
    found = _decoded(ConsumerProtocolAssignment, assignment)
    if found is None:
        return None
    return [
        (each.topic, number) for each in found.assigned_partitions for number in each.partitions
    ]


def _decoded(message_type: type[M], data: bytes) -> M | None:
    """The message; newer versions are decoded as the newest known one. None if malformed."""
    try:
        version = min(VERSION.unpack_from(data)[0], _VERSION_MAX)
        return None if version < 0 else decode(message_type, data, version, VERSION.size)
    except (MalformedMessage, StructError):
        return None
