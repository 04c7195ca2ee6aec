"""Examines the records of produced batches: form, order, keys, timestamps.

Plain Python checks few records, numpy checks many. Both give the same verdicts and messages. Before
them a plain loop accepts ordinary batches of few records, or of records of equal sizes
(`scanning`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidelog.named_tuples import new_tuple
from tidelog.records.batch import NO_TIMESTAMP, MalformedBatch, TimestampType
from tidelog.records.buffers import Buffer
from tidelog.records.parse.header_parsing import check_headers
from tidelog.records.parse.parsing import RecordColumns, parse_records
from tidelog.records.parse.sequential import RECORD_BYTES_MIN, read_layout, read_layouts
from tidelog.records.parse.varints import Bytes, Integers
from tidelog.records.validate.rules import (
    RECORD_ERRORS_MAX,
    BatchErrorCode,
    BatchLimits,
    InvalidBatch,
    RecordError,
)
from tidelog.records.validate.scanning import scan

_LOOPED_MAX = 512
"""Up to this number a plain loop is faster: numpy costs a fixed 0.4 ms a call."""
_LOOPED_FEW = 16
"""The same for each batch of a larger group: enough for records of equal sizes."""
_SINGLY_MAX = 64
"""The same limit for the thorough walk, which takes several times as long."""
_JOIN_BYTES_MAX = 256 * 1024
"""Larger sections are not copied together: they are examined alone."""
_PIECE_ROWS = 1 << 16
"""Rows of a large section in memory at a time; a row takes about a hundred bytes."""


class Section(NamedTuple):
    """A batch's decompressed records and the header fields needed to check them."""

    buffer: Buffer
    start: int
    end: int
    record_count: int
    base_timestamp: int
    limits: BatchLimits


class BatchSurvey(NamedTuple):
    """The timestamps of a valid batch."""

    first_timestamp: int
    max_timestamp: int
    max_timestamp_index: int
    """The index of the first record with the maximum."""


def examine(sections: Sequence[Section], now_ms: int) -> list[BatchSurvey | InvalidBatch]:
    """The survey or the refusal of each section."""
    looped_max = _LOOPED_MAX
    if sum([section.record_count for section in sections]) > _LOOPED_MAX:
        looped_max = min(_LOOPED_FEW, _LOOPED_MAX // len(sections))
    found: list[BatchSurvey | InvalidBatch | None] = [
        _scanned(each, now_ms, looped_max) for each in sections
    ]
    left = [section for section, survey in zip(sections, found, strict=True) if survey is None]
    rest = iter(_examine_thoroughly(left, now_ms) if left else ())
    return [next(rest) if survey is None else survey for survey in found]


def _scanned(section: Section, now_ms: int, looped_max: int) -> BatchSurvey | None:
    """The survey of an ordinary, valid batch; None for every other batch."""
    buffer, start, end, count, base, limits = section
    scanned = scan(buffer, start, end, count, looped_max)
    if scanned is None:
        return None
    low, high = limits.timestamp_bounds(now_ms)
    if base + scanned.min_delta < low or base + scanned.max_delta > high:
        return None
    if limits.keys_required and scanned.has_null_key:
        return None
    first, greatest = base + scanned.first_delta, base + scanned.max_delta
    return new_tuple(BatchSurvey, (first, greatest, scanned.max_index))


def _examine_thoroughly(
    sections: Sequence[Section], now_ms: int
) -> list[BatchSurvey | InvalidBatch]:
    inquiries = [_Inquiry(section, now_ms) for section in sections]
    joined: list[_Inquiry] = []
    for inquiry in inquiries:
        section = inquiry.section
        if section.end - section.start <= _JOIN_BYTES_MAX:
            joined.append(inquiry)
        elif section.record_count <= _SINGLY_MAX:
            _examine_singly(inquiry)
        else:
            _examine_in_pieces(inquiry)
    if sum(inquiry.section.record_count for inquiry in joined) <= _SINGLY_MAX:
        for inquiry in joined:
            _examine_singly(inquiry)
    else:
        _examine_together(joined)
    return [inquiry.verdict() for inquiry in inquiries]


@dataclass(slots=True)
class _Inquiry:
    """The findings so far about one section."""

    section: Section
    now_ms: int
    malformed: str | None = None
    errors: list[tuple[BatchErrorCode, RecordError]] = field(default_factory=list)
    first_delta: int = 0
    max_delta: int = -(2**63)
    max_index: int = -1

    def note(self, first_index: int, first_delta: int, max_delta: int, max_index: int) -> None:
        """Record timestamp deltas of consecutive records; indexes count from the batch's start."""
        if first_index == 0:
            self.first_delta = first_delta
        if max_delta > self.max_delta or self.max_index < 0:
            self.max_delta, self.max_index = max_delta, max_index

    def is_suspect(self, min_delta: int, max_delta: int, shortest_key: int) -> bool:
        """True if records with these extremes may have to be refused."""
        base, limits = self.section.base_timestamp, self.section.limits
        if shortest_key < 0 and limits.keys_required:
            return True
        low, high = limits.timestamp_bounds(self.now_ms)
        return base + min_delta < low or base + max_delta > high

    def check_record(self, index: int, timestamp_delta: int, key_length: int) -> None:
        """Record the error of a well-formed record, if it has one."""
        section = self.section
        if section.limits.keys_required and key_length < 0:
            message = "a compacted topic accepts no record without a key"
            self.errors.append((BatchErrorCode.INVALID_RECORD, RecordError(index, message)))
            return
        timestamp = section.base_timestamp + timestamp_delta
        if section.limits.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return
        low, high = section.limits.timestamp_bounds(self.now_ms)
        if timestamp != NO_TIMESTAMP and not low <= timestamp <= high:
            message = f"timestamp {timestamp} is out of range: it must lie within [{low}, {high}]"
            self.errors.append((BatchErrorCode.INVALID_TIMESTAMP, RecordError(index, message)))

    def verdict(self) -> BatchSurvey | InvalidBatch:
        if self.malformed is not None:
            return InvalidBatch(BatchErrorCode.INVALID_RECORD, self.malformed)
        if not self.errors:
            base = self.section.base_timestamp
            return BatchSurvey(base + self.first_delta, base + self.max_delta, self.max_index)
        record_errors = tuple(error for _, error in self.errors[:RECORD_ERRORS_MAX])
        if any(
            code is BatchErrorCode.INVALID_TIMESTAMP for code, _ in self.errors[:RECORD_ERRORS_MAX]
        ):
            message = "one or more records have been rejected due to an invalid timestamp"
            return InvalidBatch(BatchErrorCode.INVALID_TIMESTAMP, message, record_errors)
        message = f"records have been rejected, the first: {record_errors[0].message}"
        return InvalidBatch(BatchErrorCode.INVALID_RECORD, message, record_errors)


def _examine_singly(inquiry: _Inquiry) -> None:
    section = inquiry.section
    layouts = read_layouts(section.buffer, section.start, section.end, section.record_count)
    deltas: list[int] = []
    key_lengths: list[int] = []
    try:
        for index, layout in enumerate(layouts):
            if layout.offset_delta != index:
                inquiry.malformed = _disorder(index, layout.offset_delta)
                return
            deltas.append(layout.timestamp_delta)
            key_lengths.append(layout.key_length)
    except MalformedBatch as error:
        inquiry.malformed = str(error)
        return
    greatest = max(deltas)
    inquiry.note(0, deltas[0], greatest, deltas.index(greatest))
    if inquiry.is_suspect(min(deltas), greatest, min(key_lengths)):
        for index, (delta, key_length) in enumerate(zip(deltas, key_lengths, strict=True)):
            inquiry.check_record(index, delta, key_length)


def _examine_together(inquiries: Sequence[_Inquiry]) -> None:
    sections = [inquiry.section for inquiry in inquiries]
    data = np.frombuffer(
        b"".join([memoryview(s.buffer)[s.start : s.end] for s in sections]), np.uint8
    )
    ends = np.cumsum(np.array([s.end - s.start for s in sections], np.int64))
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    counts = np.array([s.record_count for s in sections], np.int64)
    columns = parse_records(data, starts, ends, counts)
    _judge(data, columns, inquiries, ends, 0)


def _examine_in_pieces(inquiry: _Inquiry) -> None:
    section = inquiry.section
    data = np.frombuffer(section.buffer, np.uint8)
    ends = np.array([section.end], np.int64)
    position = section.start
    if section.record_count * RECORD_BYTES_MIN > section.end - section.start:
        inquiry.malformed = _overcrowded(section)
    for index in range(0, section.record_count, _PIECE_ROWS):
        if inquiry.malformed is not None:
            return
        rows = min(_PIECE_ROWS, section.record_count - index)
        starts, counts = np.array([position], np.int64), np.array([rows], np.int64)
        partial = index + rows < section.record_count
        columns = parse_records(data, starts, ends, counts, partial=partial)
        _judge(data, columns, [inquiry], ends, index)
        position = int(columns.stops[0])


def _judge(
    data: Bytes,
    columns: RecordColumns,
    inquiries: Sequence[_Inquiry],
    ends: Integers,
    first_index: int,
) -> None:
    """Give each inquiry the findings of its rows; their indexes begin at `first_index`."""
    if not len(columns.start):
        for inquiry in inquiries:
            inquiry.malformed = _overcrowded(inquiry.section)
        return
    indexes = np.arange(first_index, first_index + len(columns.start))
    indexes -= np.repeat(columns.first_rows, columns.counts)
    bad = columns.offset_delta != indexes
    rows = np.flatnonzero((columns.header_count > 0) & ~columns.bad)
    if len(rows):
        bad[rows] |= check_headers(
            data, columns.header_start[rows], columns.header_count[rows], columns.end[rows]
        )
    if bad.any():
        columns.mark(bad)
    for batch in np.flatnonzero(columns.malformed).tolist():
        inquiries[batch].malformed = _describe(
            data, columns, batch, inquiries[batch].section, int(ends[batch]), first_index
        )
    _survey(columns, inquiries, first_index)


def _survey(columns: RecordColumns, inquiries: Sequence[_Inquiry], first_index: int) -> None:
    """Record timestamps and keys of the well-formed batches."""
    batches = np.flatnonzero(~columns.malformed)
    if not len(batches):
        return
    # Malformed batches take part in the reduction; their results are unused.
    occupied = np.flatnonzero(columns.counts)
    firsts, counts = columns.first_rows[occupied], columns.counts[occupied]
    deltas = columns.timestamp_delta
    greatest = np.maximum.reduceat(deltas, firsts)
    least = np.minimum.reduceat(deltas, firsts)
    at_greatest = np.flatnonzero(deltas == np.repeat(greatest, counts))
    first_greatest = at_greatest[np.searchsorted(at_greatest, firsts)] - firsts
    shortest_key = np.minimum.reduceat(columns.key_length, firsts)
    malformed = columns.malformed[occupied]
    for batch, row, first_delta, max_delta, min_delta, max_row, key_length, skip in zip(
        occupied.tolist(),
        firsts.tolist(),
        deltas[firsts].tolist(),
        greatest.tolist(),
        least.tolist(),
        first_greatest.tolist(),
        shortest_key.tolist(),
        malformed.tolist(),
        strict=True,
    ):
        if skip:
            continue
        inquiry = inquiries[batch]
        inquiry.note(first_index, first_delta, max_delta, first_index + max_row)
        if inquiry.is_suspect(min_delta, max_delta, key_length):
            rows = slice(row, row + int(columns.counts[batch]))
            _check_records(inquiry, deltas[rows], columns.key_length[rows], first_index)


def _check_records(
    inquiry: _Inquiry, deltas: Integers, key_lengths: Integers, first_index: int
) -> None:
    """Find faulty records with numpy, and record their errors up to the limit."""
    limits = inquiry.section.limits
    wrong = np.zeros(len(deltas), np.bool_)
    if limits.keys_required:
        wrong |= key_lengths < 0
    if limits.timestamp_type is TimestampType.CREATE_TIME:
        low, high = limits.timestamp_bounds(inquiry.now_ms)
        base = np.int64(inquiry.section.base_timestamp)
        timestamps = deltas + base
        wrong |= (timestamps != NO_TIMESTAMP) & ((timestamps < low) | (timestamps > high))
        # The sum of two numbers of the same sign has overflowed if its sign differs.
        wrong |= ((timestamps ^ base) & (timestamps ^ deltas)) < 0
    for row in np.flatnonzero(wrong)[: RECORD_ERRORS_MAX - len(inquiry.errors)].tolist():
        inquiry.check_record(first_index + row, int(deltas[row]), int(key_lengths[row]))


def _describe(
    data: Bytes, columns: RecordColumns, batch: int, section: Section, end: int, first_index: int
) -> str:
    """The error of a malformed batch, in the words of `sequential`."""
    first, count = int(columns.first_rows[batch]), int(columns.counts[batch])
    if not count:
        return _overcrowded(section)
    bad = np.flatnonzero(columns.bad[first : first + count])
    if not len(bad):
        rest = end - int(columns.stops[batch])
        return f"{rest} bytes behind the last of {section.record_count} records"
    index = first_index + int(bad[0])
    try:
        layout = read_layout(data.data, int(columns.start[first + int(bad[0])]), end)
    except MalformedBatch as error:
        return f"record {index}: {error}"
    return _disorder(index, layout.offset_delta)


def _disorder(index: int, offset_delta: int) -> str:
    return f"record {index}: its offset delta is {offset_delta}"


def _overcrowded(section: Section) -> str:
    return f"{section.end - section.start} bytes cannot hold {section.record_count} records"
