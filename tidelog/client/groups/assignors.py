"""The consumer protocol's messages (KIP-62), and Kafka's assignors. Pure.

Members exchange the messages through brokers, which do not read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from struct import Struct as StructCode
from typing import TypeAlias

from tidelog.client.groups.admin import Place
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.fields import array, binary, int32, string
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.wire import Buffer

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members share the partitions of topics."""

_VERSION = StructCode(">h")
_SUBSCRIPTION_VERSION = 1
_ASSIGNMENT_VERSION = 0

Subscriptions: TypeAlias = Mapping[str, Sequence[str]]
"""Member ids, with the topics to which each member subscribes."""
Assignments: TypeAlias = dict[str, list[Place]]
"""Member ids, with the partitions assigned to each."""


@dataclass(frozen=True, slots=True)
class Assignor:
    """A way to share partitions, by the name for which members vote.

    `assign` takes the subscriptions and the partition count of each topic.
    """

    name: str
    assign: Callable[[Subscriptions, Mapping[str, int]], Assignments]


class _Partitions(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class _Subscription(Message, versions=(0, 3)):
    topics: list[str] = array(string)
    user_data: Buffer | None = binary(nullable="0+", default=None)
    owned_partitions: list[_Partitions] = array(_Partitions, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


class _Assignment(Message, versions=(0, 3)):
    assigned_partitions: list[_Partitions] = array(_Partitions)
    user_data: Buffer | None = binary(nullable="0+", default=None)


def encode_subscription(topics: Iterable[str], owned: Iterable[Place] = ()) -> bytes:
    """A member's subscription, for the group's leader."""
    message = _Subscription(topics=sorted(topics), owned_partitions=_by_topic(owned))
    return _VERSION.pack(_SUBSCRIPTION_VERSION) + b"".join(encode(message, _SUBSCRIPTION_VERSION))


def decode_subscription(data: Buffer) -> list[str]:
    """The topics of a member's subscription.

    Raises:
        MalformedMessage: the data is no subscription.
    """
    version = min(_version(data), _Subscription.VERSIONS[-1])
    # Newer versions append their fields.
    return decode(_Subscription, data, version, _VERSION.size, whole=False).topics


def encode_assignment(places: Iterable[Place]) -> bytes:
    """The leader's assignment for a member."""
    message = _Assignment(assigned_partitions=_by_topic(places))
    return _VERSION.pack(_ASSIGNMENT_VERSION) + b"".join(encode(message, _ASSIGNMENT_VERSION))


def decode_assignment(data: Buffer) -> tuple[Place, ...]:
    """The assigned partitions; none in an empty assignment.

    Raises:
        MalformedMessage: the data is no assignment.
    """
    if not len(data):
        return ()
    version = min(_version(data), _Assignment.VERSIONS[-1])
    message = decode(_Assignment, data, version, _VERSION.size, whole=False)
    return tuple(
        Place(topic.topic, partition)
        for topic in message.assigned_partitions
        for partition in topic.partitions
    )


def _version(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise MalformedMessage(f"{len(data)} bytes hold no version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedMessage(f"version {version} of a consumer's metadata")
    return version


def _by_topic(places: Iterable[Place]) -> list[_Partitions]:
    topics: dict[str, list[int]] = defaultdict(list)
    for place in sorted(places):
        topics[place.topic].append(place.partition)
    return [_Partitions(topic=name, partitions=numbers) for name, numbers in topics.items()]


def assign_ranges(subscriptions: Subscriptions, partitions: Mapping[str, int]) -> Assignments:
    """Assign consecutive partitions of each topic; the first members take the remainder."""
    assigned: Assignments = {member: [] for member in sorted(subscriptions)}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = [member for member in assigned if topic in subscriptions[member]]
        quotient, rest = divmod(partitions.get(topic, 0), len(members))
        first = 0
        for place, member in enumerate(members):
            end = first + quotient + (place < rest)
            assigned[member] += [Place(topic, number) for number in range(first, end)]
            first = end
    return assigned


def assign_in_turn(subscriptions: Subscriptions, partitions: Mapping[str, int]) -> Assignments:
    """Assign partitions one by one to the next member that subscribes to the topic."""
    assigned: Assignments = {member: [] for member in sorted(subscriptions)}
    members = cycle(assigned)
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        for number in range(partitions.get(topic, 0)):
            member = next(one for one in members if topic in subscriptions[one])
            assigned[member].append(Place(topic, number))
    return assigned


RANGE = Assignor("range", assign_ranges)
ROUND_ROBIN = Assignor("roundrobin", assign_in_turn)
