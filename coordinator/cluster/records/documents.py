"""The JSON documents under `cluster/`: one envelope of magic, format version and checksum."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping

from tidelog.coordinator.cluster.records.codec import Json
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.storage.object_store import Buffer

DOCUMENT_BYTES_MAX = 256 * 1024 * 1024

# The checksum is the last member. It covers every byte before the comma that precedes it. So a
# document is plain JSON, and yet a check needs no canonical form.
_TRAILER = re.compile(rb',"crc32":"([0-9a-f]{8})"}\n')
_TRAILER_BYTES = len(b',"crc32":"00000000"}\n')
_AFTER_CRC = len(b'"}\n')
_CRC_FROM_END = 8 + _AFTER_CRC


def encode_document(magic: str, version: int, body: Mapping[str, Json]) -> bytes:
    """One line of JSON: `magic`, `format`, the members of `body`, `crc32`."""
    members = {"magic": magic, "format": version, **body}
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    covered = text.encode()[:-1]
    return covered + b',"crc32":"%08x"}\n' % zlib.crc32(covered)


def checksum_of(data: Buffer) -> int:
    """The checksum at the end of a document that this process encoded or decoded."""
    return int(bytes(data[-_TRAILER_BYTES:])[-_CRC_FROM_END:-_AFTER_CRC], 16)


def decode_document(key: str, data: Buffer, magic: str, version_newest: int) -> dict[str, Json]:
    """The members of the document at `key` without the envelope's own.

    Raises CorruptObject if it is no such document or is damaged; UnsupportedFormat if its format is
    newer than `version_newest`. The envelope is the same in all formats.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CorruptObject(key, f"{len(data)} bytes are more than {DOCUMENT_BYTES_MAX}")
    raw = bytes(data)
    trailer = _TRAILER.fullmatch(raw[-_TRAILER_BYTES:])
    if trailer is None:
        raise CorruptObject(key, "it does not end in a checksum: cut off, or not Tidelog's")
    covered = raw[:-_TRAILER_BYTES]
    if zlib.crc32(covered) != int(trailer[1], 16):
        raise CorruptObject(key, "its checksum is wrong")
    try:
        members = json.loads(covered + b"}")
    except ValueError as error:
        raise CorruptObject(key, f"it is not JSON: {error}") from error
    if type(members) is not dict or members.pop("magic", None) != magic:
        raise CorruptObject(key, f"it is not a {magic}")
    version = members.pop("format", None)
    if type(version) is not int or version < 1:
        raise CorruptObject(key, f"{version!r} is not a format version")
    if version > version_newest:
        raise UnsupportedFormat(
            f"object {key} has format version {version}; this Tidelog reads up to version"
            f" {version_newest}. Nothing was changed: use a newer Tidelog"
        )
    return members
