"""Adopted batches (H8): their bytes stay in a staged object, what makes them a producer's is in the
index. Pure.

A staged batch has no identity: no offset, no leader epoch, no producer. Its entry in the index has
all of that, and whoever reads the batch stamps it. So that an extent of an adopted batch can say it
too, wherever extents are kept (logs, images, caches), it names its object by a *reference*:

    staged/<id>@<producer id>.<producer epoch>.<ordinal>.<leader epoch>

`object_key` gives the object to be read, `verify` (`wal/read`) the batch as consumers see it. A
reference is never an object's key: who reads it as one finds nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch
from tidelog.records.batch import NO_SEQUENCE

STAGED_FOLDER = "staged/"
NO_LEADER_EPOCH = -1
_MARK = "@"


def staged_key(staged_id: UUID) -> str:
    """The key of a staged object."""
    return f"{STAGED_FOLDER}{staged_id}"


class Adoption(NamedTuple):
    """Who has adopted batches of a staged object, in which transaction and tenure."""

    key: str
    """The object's."""
    producer_id: int
    producer_epoch: int
    ordinal: int
    leader_epoch: LeaderEpoch

    @property
    def reference(self) -> str:
        """What extents of these batches have in place of a key."""
        return f"{self.key}{_MARK}{'.'.join(map(str, self[1:]))}"


class AdoptedBatch(NamedTuple):
    """What the log and the index have to know of a batch that is adopted (`BatchFields`)."""

    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    record_count: int
    key: str
    position: int
    length: int
    crc: int
    """The checksum in its header, as it is staged."""
    base_sequence: int = NO_SEQUENCE


@lru_cache(maxsize=4096)
def adoption_of(reference: str) -> Adoption | None:
    """What the key of an extent says; None where the batches have an identity of their own.

    CorruptObject for what looks like a reference and is none.
    """
    key, mark, identity = reference.partition(_MARK)
    if not mark:
        return None
    try:
        producer_id, producer_epoch, ordinal, leader_epoch = map(int, identity.split("."))
    except ValueError:
        raise CorruptObject(reference, "it is no reference to adopted batches") from None
    return Adoption(key, producer_id, producer_epoch, ordinal, LeaderEpoch(leader_epoch))


def object_key(reference: str) -> str:
    """The object in which the batches of an extent lie, by the extent's key."""
    return reference.partition(_MARK)[0]
