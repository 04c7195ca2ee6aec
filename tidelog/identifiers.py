"""Distinct types for integers and strings that are easily confused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NewType, TypeAlias
from uuid import UUID

BrokerId = NewType("BrokerId", int)
"""A broker's configured id; survives restarts."""
Epoch = NewType("Epoch", int)
"""A broker incarnation: the sequence number of its registration in the metadata log."""
Slot = NewType("Slot", int)
"""A position in an incarnation's WAL, from 0."""
FIRST_SLOT = Slot(0)
Offset = NewType("Offset", int)
"""A record's position in a partition."""
LeaderEpoch = NewType("LeaderEpoch", int)
FIRST_LEADER_EPOCH = LeaderEpoch(0)
"""Counts the tenures of a partition, from 0."""
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId = UUID


class TopicPartition(NamedTuple):
    """A partition, by its topic's id: the key of a partition's data in the bucket."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


TenureKey: TypeAlias = tuple[TopicPartition, LeaderEpoch]
"""A tenure, by its partition and leader epoch."""


class Incarnation(NamedTuple):
    """One registration of a broker process."""

    broker_id: BrokerId
    epoch: Epoch

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.epoch}"


class WalPosition(NamedTuple):
    """A WAL object, by incarnation and slot."""

    incarnation: Incarnation
    slot: Slot


@dataclass(frozen=True, slots=True)
class MetadataStamp:
    """The last entry of the metadata log that a process has applied (rule C11)."""

    sequence: int
    checksum: int
    """The checksum of that entry's object."""


class TransactionName(NamedTuple):
    """One transaction of a producer id, by its ordinal."""

    producer_id: int
    ordinal: int
