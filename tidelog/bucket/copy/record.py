"""`cluster/copy.json`: marks a bucket as a copy, and names the cluster and its history. Pure.

The copier puts it first, so that a later run recognises its own unfinished copy. The copy
is complete if its metadata log has a snapshot. A metadata entry with the same content blocks a
complete copy while it is brought up to date: no broker can register past it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.errors import CorruptObject
from tidelog.identifiers import MetadataStamp
from tidelog.storage.object_store import Buffer

_MAGIC: Final = "tidelog.copy"
_FORMAT: Final = 1


class CopyRecord(NamedTuple):
    """The cluster that was copied, and the last entry of its metadata log that a run has read."""

    cluster_id: str
    metadata: MetadataStamp
    damaged: tuple[str, ...] = ()
    """The copied objects that were damaged in the original; the next run copies them again."""


def encode_copy_record(record: CopyRecord) -> bytes:
    """The object's bytes."""
    members: dict[str, object] = {
        "cluster_id": record.cluster_id,
        "sequence": record.metadata.sequence,
        "checksum": record.metadata.checksum,
    }
    if record.damaged:
        members["damaged"] = list(record.damaged)
    return encode_document(_MAGIC, _FORMAT, members)


def decode_copy_record(key: str, data: Buffer) -> CopyRecord:
    """The record. Raises CorruptObject and UnsupportedFormat."""
    members = decode_document(key, data, _MAGIC, _FORMAT)
    match members:
        case {"cluster_id": str(cluster_id), "sequence": int(sequence), "checksum": int(checksum)}:
            damaged = tuple(map(str, members.get("damaged", ())))
            return CopyRecord(cluster_id, MetadataStamp(sequence, checksum), damaged)
    raise CorruptObject(key, "it does not name a cluster and an entry of its metadata log")
