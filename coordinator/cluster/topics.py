"""Topics as the metadata log knows them, and Kafka's rules for their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.identifiers import TopicId
from tidelog.wal.tenure import Tenure

TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

Tenures: TypeAlias = tuple[Tenure, ...]
"""Of one partition, oldest first: the current one, and those before it that are still needed."""


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
    """Equal for names that Kafka holds to collide, since its metrics write '.' as '_'."""
    return name.replace(".", "_")
