"""The changes of one commit to a table, and their encoding as an entry of the table log.

An entry is text with one JSON object a line (an action, in Delta Lake's terms). The last action is
`commitInfo`, which holds the writer id and a checksum of the entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicId
from tidelog.storage.object_store import Buffer
from tidelog.storage.segment.segment import CleanedRange, Segment, SegmentName
from tidelog.storage.table.table_schema import (
    PARTITION_COLUMN,
    check_metadata,
    check_protocol,
    protocol,
)

ENGINE: Final = "Tidelog"
SEGMENT_TAG: Final = "tidelog.segment"
APPLICATION_PREFIX: Final = "partition="
_encode = json.JSONEncoder(separators=(",", ":")).encode
_CHECKSUM_MARK = b'"checksum":"'
_NO_CHECKSUM = b"00000000"
_WRITER_ID_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Delta Lake's statistics hold a time as ISO 8601 with four digits of the year.
_DATED_MIN = -62_135_596_800_000
_DATED_MAX = 253_402_300_799_999


class TableAdvance(NamedTuple):
    """The range of offsets by which a commit extends a partition's table."""

    base_offset: int
    """The offset at which the table must end before the commit (rule E1)."""
    next_offset: int
    """The offset at which the table ends after the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """The changes of a commit to one partition."""

    partition: int
    advance: TableAdvance | None = None
    """Set if the commit extends the partition's table."""
    appended: tuple[Segment, ...] = ()
    """Ascending within the advance. Offsets that no segment covers have no record."""
    removed: tuple[SegmentName, ...] = ()
    """Segments that must be in the table (rule E3)."""
    rewritten: tuple[Segment, ...] = ()
    """Compaction's replacements for the removed segments, ascending."""
    is_compaction: bool = False
    """Whether compaction removes the segments, also where it leaves no row of them. Other engines
    then know that no data is gone. Not decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One entry of the table log."""

    writer_id: bytes
    """Unique for each commit, so that its writer recognises it (rule A1)."""
    timestamp_ms: int
    """The writer's clock; also the removal time of the removed segments."""
    changes: tuple[PartitionChange, ...]
    """One per partition."""
    metadata: dict[str, Any] | None = None
    """The table's metadata, in its first commit."""


def writer_id_of(key: str, data: Buffer) -> bytes:
    """The writer id in an entry. CorruptObject."""
    return _read_info(key, _checked_lines(key, data)[-1])[0]


def encode_commit(commit: Commit) -> bytes:
    actions: list[dict[str, Any]] = []
    if commit.metadata is not None:
        actions += [{"protocol": protocol()}, {"metaData": commit.metadata}]
    advances: dict[str, str] = {}
    for change in commit.changes:
        application = f"{APPLICATION_PREFIX}{change.partition}"
        if change.advance is not None:
            base, following = change.advance
            advances[application] = f"{base}-{following}"
            actions.append({"txn": txn_action(change.partition, following)})
        is_deletion = not (change.rewritten or change.is_compaction)
        actions += [
            {"remove": remove_action(name, commit.timestamp_ms, is_deletion)}
            for name in change.removed
        ]
        for segments, is_new in ((change.rewritten, False), (change.appended, True)):
            actions += [
                {"add": add_action(segment, commit.timestamp_ms, is_new)} for segment in segments
            ]
    info = {
        "timestamp": commit.timestamp_ms,
        "operation": "WRITE" if advances else "DELETE",
        "operationParameters": advances,
        "engineInfo": ENGINE,
        "writerId": commit.writer_id.hex(),
        "checksum": _NO_CHECKSUM.decode(),
    }
    actions.append({"commitInfo": info})
    body = "".join(_encode(action) + "\n" for action in actions).encode()
    at = body.rindex(_CHECKSUM_MARK) + len(_CHECKSUM_MARK)
    return body[:at] + b"%08x" % crc32c(body) + body[at + len(_NO_CHECKSUM) :]


def decode_commit(key: str, data: Buffer, topic_id: TopicId) -> Commit:
    """An entry of the topic's table log. Unknown actions are ignored.

    CorruptObject, UnsupportedFormat.
    """
    lines = _checked_lines(key, data)
    writer_id, timestamp_ms, advances = _read_info(key, lines[-1])
    added: list[Segment] = []
    removed: list[SegmentName] = []
    metadata: dict[str, Any] | None = None
    kinds = {kind for line in lines for kind in line}
    if ("protocol" in kinds) != ("metaData" in kinds):
        raise CorruptObject(key, "protocol and metadata come together or not at all")
    for line in lines[:-1]:
        ((kind, action),) = line.items()
        match kind:
            case "add":
                added.append(read_add(key, action))
            case "remove":
                removed.append(_read_path(key, action))
            case "protocol":
                check_protocol(key, action)
            case "metaData":
                check_metadata(key, action, topic_id)
                metadata = action
    changes = _by_partition(key, advances, added, removed)
    return Commit(
        writer_id=writer_id, timestamp_ms=timestamp_ms, changes=changes, metadata=metadata
    )


def txn_action(partition: int, next_offset: int) -> dict[str, Any]:
    """The content of the `txn` action that records a partition's end in the table."""
    return {"appId": f"{APPLICATION_PREFIX}{partition}", "version": next_offset}


def add_action(segment: Segment, modified_ms: int, data_change: bool) -> dict[str, Any]:
    """The content of a segment's `add` action."""
    known: dict[str, Any] = {
        "rowCount": segment.row_count,
        "firstRow": segment.first_row,
        "lastRow": segment.last_row,
        "undatedRows": segment.undated_rows,
        "rawBytes": segment.raw_bytes,
        "timestampMin": segment.timestamp_min,
        "timestampMax": segment.timestamp_max,
        "crc32c": segment.crc32c,
        "tailBytes": segment.tail_bytes,
    }
    if segment.tombstones is not None:
        known["tombstones"] = segment.tombstones
    if segment.cleaned:
        known["cleaned"] = segment.cleaned
    return {
        "path": segment.path,
        "partitionValues": {PARTITION_COLUMN: str(segment.name.partition)},
        "size": segment.size_bytes,
        "modificationTime": modified_ms,
        "dataChange": data_change,
        "stats": _encode(_statistics(segment)),
        "tags": {SEGMENT_TAG: _encode(known)},
    }


def remove_action(name: SegmentName, removed_ms: int, data_change: bool) -> dict[str, Any]:
    """The content of a segment's `remove` action."""
    return {
        "path": name.path,
        "deletionTimestamp": removed_ms,
        "dataChange": data_change,
        "extendedFileMetadata": False,
    }


def read_add(key: str, action: dict[str, Any]) -> Segment:
    """The segment of an `add` action. CorruptObject."""
    name = _read_path(key, action)
    try:
        known = json.loads(action["tags"][SEGMENT_TAG])
        cleaned = tuple(CleanedRange(*map(int, each)) for each in known.get("cleaned", ()))
        ends = [each.next_offset for each in cleaned]
        if ends != sorted(set(ends)) or (
            ends and not name.base_offset < ends[0] <= ends[-1] <= (name.last_offset + 1)
        ):
            raise ValueError(f"cleaned up to offsets {ends}")
        return Segment(
            name=name,
            size_bytes=int(action["size"]),
            row_count=int(known["rowCount"]),
            first_row=int(known["firstRow"]),
            last_row=int(known["lastRow"]),
            undated_rows=int(known["undatedRows"]),
            raw_bytes=int(known["rawBytes"]),
            timestamp_min=known["timestampMin"],
            timestamp_max=known["timestampMax"],
            crc32c=int(known["crc32c"]),
            tail_bytes=int(known["tailBytes"]),
            tombstones=known.get("tombstones"),
            cleaned=cleaned,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptObject(key, f"the entry of {name.path} does not decode: {error!r}") from None


def _statistics(segment: Segment) -> dict[str, Any]:
    low: dict[str, Any] = {"offset": segment.first_row}
    high: dict[str, Any] = {"offset": segment.last_row}
    earliest, latest = segment.timestamp_min, segment.timestamp_max
    if (
        earliest is not None
        and latest is not None
        and _DATED_MIN <= earliest <= latest <= _DATED_MAX
    ):
        low["timestamp"], high["timestamp"] = _iso_time(earliest), _iso_time(latest)
    return {
        "numRecords": segment.row_count,
        "minValues": low,
        "maxValues": high,
        "nullCount": {"offset": 0, "timestamp": segment.undated_rows},
    }


def _iso_time(timestamp_ms: int) -> str:
    date = _EPOCH + timedelta(milliseconds=timestamp_ms)
    return date.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _checked_lines(key: str, data: Buffer) -> list[dict[str, Any]]:
    """The entry's actions, after a check of its checksum. The last one is `commitInfo`."""
    body = bytes(data)
    at = body.rfind(_CHECKSUM_MARK) + len(_CHECKSUM_MARK)
    end = at + len(_NO_CHECKSUM)
    if at < len(_CHECKSUM_MARK) or not body.endswith(b"\n"):
        raise CorruptObject(key, "it is cut off, or no entry that Tidelog wrote")
    if body[at:end] != b"%08x" % crc32c(body[:at] + _NO_CHECKSUM + body[end:]):
        raise CorruptObject(key, "it does not match its checksum")
    try:
        lines = [json.loads(line) for line in body.splitlines()]
    except ValueError as error:
        raise CorruptObject(key, f"it does not decode: {error}") from None
    if not all(isinstance(line, dict) and len(line) == 1 for line in lines):
        raise CorruptObject(key, "a line is no action")
    return lines


def _read_info(key: str, line: dict[str, Any]) -> tuple[bytes, int, dict[int, TableAdvance]]:
    """The writer id, the time, and the advance of each extended partition."""
    try:
        info = line["commitInfo"]
        writer_id = bytes.fromhex(info["writerId"])
        advances = {
            _partition_of(application): _range_of(span)
            for application, span in info["operationParameters"].items()
        }
        if len(writer_id) != _WRITER_ID_BYTES:
            raise ValueError(f"a writer id of {len(writer_id)} bytes")
        return writer_id, int(info["timestamp"]), advances
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptObject(key, f"its commitInfo does not decode: {error!r}") from None


def _partition_of(application: str) -> int:
    return int(application.removeprefix(APPLICATION_PREFIX))


def _range_of(span: str) -> TableAdvance:
    base, following = map(int, span.split("-"))
    return TableAdvance(base, following)


def _read_path(key: str, action: dict[str, Any]) -> SegmentName:
    path = action.get("path")
    name = SegmentName.parse(path) if isinstance(path, str) else None
    if name is None:
        raise CorruptObject(key, f"it names {path!r}, which is no segment")
    return name


def _by_partition(
    key: str,
    advances: dict[int, TableAdvance],
    added: Iterable[Segment],
    removed: Iterable[SegmentName],
) -> tuple[PartitionChange, ...]:
    appended: dict[int, list[Segment]] = {}
    rewritten: dict[int, list[Segment]] = {}
    gone: dict[int, list[SegmentName]] = {}
    for segment in added:
        partition = segment.name.partition
        advance = advances.get(partition)
        is_new = advance is not None and segment.name.base_offset >= advance.base_offset
        (appended if is_new else rewritten).setdefault(partition, []).append(segment)
    for name in removed:
        gone.setdefault(name.partition, []).append(name)
    partitions = sorted({*advances, *appended, *rewritten, *gone})
    return tuple(
        PartitionChange(
            partition=partition,
            advance=advances.get(partition),
            appended=tuple(appended.get(partition, ())),
            removed=tuple(gone.get(partition, ())),
            rewritten=tuple(rewritten.get(partition, ())),
        )
        for partition in partitions
    )
