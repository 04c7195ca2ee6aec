"""Validation of object keys, so that every store can hold them unchanged."""

from __future__ import annotations

KEY_BYTES_MAX = 1024
"""S3's limit on a key, prefix included."""
SEGMENT_BYTES_MAX = 255
"""The limit of common file systems on one name."""

RESERVED_DIRECTORY = ".tidelog"
"""The filesystem store's own files. No key in any store begins with it."""

_FORBIDDEN = frozenset(map(chr, [*range(32), 127])) | frozenset("\\")


def validate_key(key: str) -> str:
    """The key, unchanged. ValueError unless every store can hold it.

    A key is `/`-separated segments, none of them empty, `.` or `..`. Each is at most 255 bytes of
    UTF-8, without control characters or backslashes. No key lies below `.tidelog`.
    """
    if key.partition("/")[0] == RESERVED_DIRECTORY:
        raise ValueError(f"object key {key!r} begins with {RESERVED_DIRECTORY}, which is reserved")
    if len(key) * 4 > KEY_BYTES_MAX and len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"object key {key[:80]!r}... is longer than {KEY_BYTES_MAX} bytes")
    for segment in key.split("/"):
        _validate_segment(key, segment)
    return key


def validate_prefix(prefix: str) -> str:
    """The prefix of a listing, unchanged: empty, or the beginning of a valid key."""
    *directories, _ = prefix.split("/")
    for segment in directories:
        _validate_segment(prefix, segment)
    return prefix


def _validate_segment(key: str, segment: str) -> None:
    if segment in {"", ".", ".."}:
        raise ValueError(f"object key {key!r} has an empty or relative segment")
    if not _FORBIDDEN.isdisjoint(segment):
        raise ValueError(f"object key {key!r} has a control character or a backslash")
    if len(segment) * 4 > SEGMENT_BYTES_MAX and len(segment.encode()) > SEGMENT_BYTES_MAX:
        raise ValueError(
            f"object key {key[:80]!r}... has a segment longer than {SEGMENT_BYTES_MAX} bytes"
        )
