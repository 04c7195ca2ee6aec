"""Topics as the metadata log knows them, and Kafka's rules for their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from tidelog.identifiers import TopicId
from tidelog.wal.log.tenure import Tenure

TOPIC_NAME_LENGTH_MAX = 249
_SEQUENCE_BITS = 48
_RANDOM_BITS = 80
_VERSION_SHIFT, _VERSION = 76, 8
_VARIANT_SHIFT, _VARIANT = 62, 0b10
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

Tenures: TypeAlias = tuple[Tenure, ...]
"""A partition's tenures, oldest first: the earlier ones that are still needed, and the current
one."""


class TopicFate(Enum):
    """The metadata log's knowledge of a topic's id."""

    ALIVE = "alive"
    DELETED = "deleted"
    """Its remaining objects may be collected."""
    FORGOTTEN = "forgotten"
    """It was deleted, and its folder was empty. Later objects are kept."""
    UNKNOWN = "unknown"
    """The entry that creates it is not in the log: the log has lost its end."""


def new_topic_id(sequence: int, random: UUID) -> TopicId:
    """The id of a topic that entry `sequence` creates: a UUID of version 8.

    It begins with the entry's number, so that an id tells whether the log may know it (rule C11).
    """
    if not 0 <= sequence < 1 << _SEQUENCE_BITS:
        raise ValueError(f"entry {sequence} has no number of {_SEQUENCE_BITS} bits")
    low = random.int & ((1 << _RANDOM_BITS) - 1)
    bits = sequence << _RANDOM_BITS | low
    bits = bits & ~(0xF << _VERSION_SHIFT) | _VERSION << _VERSION_SHIFT
    return UUID(int=bits & ~(0x3 << _VARIANT_SHIFT) | _VARIANT << _VARIANT_SHIFT)


def created_at(topic_id: TopicId) -> int | None:
    """The entry that created a topic, by its id; None for an id of the first release."""
    is_numbered = topic_id.int >> _VERSION_SHIFT & 0xF == _VERSION
    return topic_id.int >> _RANDOM_BITS if is_numbered else None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `partitions[p]` holds the tenures of partition p."""

    topic_id: TopicId
    name: str
    internal: bool
    configs: Mapping[str, str]
    partitions: tuple[Tenures, ...]

    @property
    def partition_count(self) -> int:
        """Partitions are numbered from 0 without a gap."""
        return len(self.partitions)


def topic_name_fault(name: str) -> str | None:
    """Why Kafka would refuse this topic name; None if it would not (Topic.validate)."""
    if name == "":
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic must not be named {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return (
            f"a topic name of {len(name)} characters is longer than {TOPIC_NAME_LENGTH_MAX}:"
            f" {name[:40]}..."
        )
    if _TOPIC_NAME.fullmatch(name) is None:
        return f"{name!r} holds characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Equal for names that collide in Kafka, since its metrics write '.' as '_'."""
    return name.replace(".", "_")
