"""Adopted batches (H8): their bytes stay in a staged object, their identity is in the index. Pure.

A staged batch has no offset, no leader epoch and no producer. The extent of an adopted batch has
them, as its offsets and its `Adoption`. Images of partitions store the object and the adoption as
the extent's *reference*:

    staged/<id>@<producer id>.<producer epoch>.<ordinal>.<leader epoch>
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The producer, the transaction and the tenure that adopted a staged batch."""

    producer_id: int
    producer_epoch: int
    ordinal: int
    leader_epoch: LeaderEpoch

    def reference(self, key: str) -> str:
        """The reference to the staged object at `key`, which images store in place of the key."""
        return f"{key}{_MARK}{'.'.join(map(str, self))}"


class AdoptedBatch(NamedTuple):
    """An adopted batch, with the fields that the log and the index need (`BatchFields`)."""

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
    """The checksum in the header of the staged batch."""
    base_sequence: int = NO_SEQUENCE


@lru_cache(maxsize=4096)
def split_reference(reference: str) -> tuple[str, Adoption | None]:
    """The object's key, and the adoption if the reference has one.

    Raises CorruptObject for a malformed reference to an adopted batch.
    """
    key, mark, identity = reference.partition(_MARK)
    if not mark:
        return key, None
    try:
        producer_id, producer_epoch, ordinal, leader_epoch = map(int, identity.split("."))
    except ValueError:
        raise CorruptObject(reference, "it is no reference to adopted batches") from None
    return key, Adoption(producer_id, producer_epoch, ordinal, LeaderEpoch(leader_epoch))


def split_references(
    references: list[str], base_offsets: Sequence[int]
) -> tuple[list[str], Mapping[int, Adoption]]:
    """The keys of extents, and the adoptions by base offset. Raises as `split_reference` does."""
    keys, adoptions = references, dict[int, Adoption]()
    for row, reference in enumerate(references):
        if _MARK in reference:
            if keys is references:
                keys = list(references)
            keys[row], adoption = split_reference(reference)
            if adoption is not None:
                adoptions[base_offsets[row]] = adoption
    return keys, adoptions


def object_key(reference: str) -> str:
    """The object in which the batches of an extent lie, by the extent's reference."""
    return reference.partition(_MARK)[0]
