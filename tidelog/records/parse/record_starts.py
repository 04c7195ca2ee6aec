"""Finds the starts of the records of many batches, by their lengths alone.

Three methods apply in turn. Runs of equal-sized records are guessed and checked, for all batches
together. Otherwise all batches advance in lockstep: step i finds the i-th record of each. The last
method is a plain loop.

Positions are clipped into the buffer. The decoder of the records must check that each lies within
its batch.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

import numpy as np

from tidelog.records.parse.sequential import VARINT_BYTES_MAX
from tidelog.records.parse.varints import Bytes, Integers, read_varints

_LANES_MIN = 40
"""For fewer batches a numpy step costs more than a Python loop."""
_WALKED_TOGETHER_MIN = 4
"""Fewer batches are processed one after the other."""
_RUN_ROWS_MIN = 16
"""Shorter runs of equal-sized records do not pay for the check."""
_RUN_ROWS_GUESSED = 64
_RUN_ROWS_MAX = 1024
_GUESSES_MAX = 1 << 14
"""Guesses for all batches together, so that they stay in the processor's cache."""
_STINT_ROWS = 256


def find_records(
    data: Bytes, starts: Integers, counts: Integers, first_rows: Integers
) -> tuple[Integers, Integers]:
    """The start of each record, and the end of each batch's last record, by lengths alone.

    After a malformed length both are meaningless and may lie outside the buffer.
    """
    found = np.empty(int(counts.sum()), np.int64)
    stops = starts.copy()
    if len(starts) < _WALKED_TOGETHER_MIN:
        view = data.data
        for batch, (first, count) in enumerate(
            zip(first_rows.tolist(), counts.tolist(), strict=True)
        ):
            rows = found[first : first + count]
            stops[batch] = _walk(data, view, int(starts[batch]), rows)
        return found, stops
    lanes = _Lanes(np.flatnonzero(counts), first_rows, starts, counts)
    guess, stint = _RUN_ROWS_GUESSED, _STINT_ROWS
    while len(lanes.batches):
        most = int(np.maximum.reduce(lanes.left))
        if most > _RUN_ROWS_MIN:
            before = int(np.add.reduce(lanes.left))
            rows_max = min(guess, most, max(_RUN_ROWS_MIN, _GUESSES_MAX // len(lanes.batches)))
            _step_by_runs(data, lanes, found, rows_max)
            gained = (before - int(np.add.reduce(lanes.left))) // len(lanes.batches)
            lanes = lanes.without_ended(stops)
            if gained >= _RUN_ROWS_MIN:
                guess = min(4 * guess, _RUN_ROWS_MAX)
                continue
            guess = _RUN_ROWS_GUESSED
        # Sizes vary: another guess now would cost more than it saves.
        lanes = _step_singly(data, lanes, found, stops, stint)
        stint *= 2
    return found, stops


class _Lanes:
    """Batches whose records are being found together."""

    def __init__(
        self, batches: Integers, first_rows: Integers, starts: Integers, counts: Integers
    ) -> None:
        self.batches = batches
        self.row = first_rows[batches]
        """For each batch, the row of its next record."""
        self.position = starts[batches]
        """The position of that record."""
        self.left = counts[batches]
        """The number of records left to find."""

    def without_ended(self, stops: Integers) -> _Lanes:
        """The batches with records left; stores the ends of the others in `stops`."""
        going = self.left > 0
        if np.logical_and.reduce(going):
            return self
        ended = ~going
        stops[self.batches[ended]] = self.position[ended]
        self.batches, self.row = self.batches[going], self.row[going]
        self.position, self.left = self.position[going], self.left[going]
        return self


def _step_by_runs(data: Bytes, lanes: _Lanes, found: Integers, rows_max: int) -> None:
    """Find in each batch the records with the size of its next one, up to `rows_max`.

    Fixed-size messages are common, and numpy checks a guess fast.
    """
    at, left = lanes.position, lanes.left
    length, body = read_varints(data, at, np.zeros(len(at), np.bool_))
    size = body - at + np.maximum(length, 0)
    width = body - at
    guessed = at[:, None] + size[:, None] * np.arange(rows_max)
    first = data.take(guessed, mode="clip")
    equal = first == first[:, :1]
    if (width > 1).any():
        second = data.take(guessed + 1, mode="clip")
        equal &= (second == second[:, :1]) | (width == 1)[:, None]
    # Longer length fields are rare. The last column means that all are equal.
    equal &= (width < 3)[:, None]
    run = np.where(equal.all(axis=1), rows_max, equal.argmin(axis=1))
    run = np.minimum(np.maximum(run, 1), left)
    inside = np.arange(rows_max) < run[:, None]
    found[(lanes.row[:, None] + np.arange(rows_max))[inside]] = guessed[inside]
    lanes.row, lanes.left = lanes.row + run, left - run
    lanes.position = at + size * run


def _step_singly(
    data: Bytes, lanes: _Lanes, found: Integers, stops: Integers, rows_max: int
) -> _Lanes:
    """Find up to `rows_max` more records of each batch; returns the unfinished lanes."""
    while rows_max and len(lanes.batches) >= _LANES_MIN:
        steps = min(rows_max, int(np.minimum.reduce(lanes.left)))
        bad = np.zeros(len(lanes.batches), np.bool_)
        row, position = lanes.row, lanes.position
        for _ in range(steps):
            found[row] = position
            length, position = read_varints(data, position, bad)
            position += np.maximum(length, 0)
            row = row + 1
        lanes.row, lanes.position, lanes.left = row, position, lanes.left - steps
        lanes = lanes.without_ended(stops)
        rows_max -= steps
    if not rows_max:
        return lanes
    view = data.data
    rows = np.minimum(lanes.left, rows_max)
    for lane, (first, count) in enumerate(zip(lanes.row.tolist(), rows.tolist(), strict=True)):
        following = found[first : first + count]
        lanes.position[lane] = _walk_singly(view, int(lanes.position[lane]), following)
    lanes.row, lanes.left = lanes.row + rows, lanes.left - rows
    return lanes.without_ended(stops)


def _walk(data: Bytes, view: memoryview, position: int, found: Integers) -> int:
    """Store the starts of one batch's records in `found`; returns the end of the last one."""
    row, stint, guess = 0, _STINT_ROWS, _STINT_ROWS
    while row < len(found):
        left = len(found) - row
        run = 0
        if left >= _RUN_ROWS_MIN:
            run, size = _run_of_equals(data, view, position, min(left, guess))
            found[row : row + run] = position + size * np.arange(run)
            row, position = row + run, position + size * run
            guess = min(4 * guess, _RUN_ROWS_MAX) if run == guess else _RUN_ROWS_MIN
        if run < _RUN_ROWS_MIN:
            # Sizes vary: another guess now would cost more than it saves.
            following = found[row : row + stint]
            position = _walk_singly(view, position, following)
            row, stint = row + len(following), 2 * stint
    return position


def _run_of_equals(data: Bytes, view: memoryview, position: int, rows_max: int) -> tuple[int, int]:
    """The number of equal-sized records from a position on (0 if the length is too long), and the
    size.

    Fixed-size messages are common, and numpy checks a guess fast.
    """
    prefix = bytes(view[position : position + 3])
    width = next((i + 1 for i, byte in enumerate(prefix) if byte < 128), 0)
    if not width:
        return 0, 0
    value = sum((byte & 127) << (7 * i) for i, byte in enumerate(prefix[:width]))
    size = width + (value >> 1)
    at = position + size * np.arange(rows_max)
    equal = data.take(at, mode="clip") == prefix[0]
    for i in range(1, width):
        equal &= data.take(at + i, mode="clip") == prefix[i]
    return (rows_max if equal.all() else int(equal.argmin())), size


def _record_sizes() -> list[int]:
    """A record's size by its first two bytes (low byte first); 0 if they do not determine it."""
    first, second = np.arange(1 << 16) & 255, np.arange(1 << 16) >> 8
    long = np.where(second < 128, 2 + ((second << 7 | first & 127) >> 1), 0)
    sizes = np.where(first < 128, 1 + (first >> 1), long)
    # Entries share one int object per number, which takes 0.5 MB instead of 2 MB.
    numbers = list(range(int(sizes.max()) + 1))
    return [numbers[size] for size in sizes.tolist()]


_RECORD_SIZES = _record_sizes()
_TWO_BYTES = Struct("<H")


def _walk_singly(view: memoryview, position: int, found: Integers) -> int:
    """As `_walk`, in a plain loop."""
    rows: list[int] = []
    add, sizes, two_bytes = rows.append, _RECORD_SIZES, _TWO_BYTES.unpack_from
    try:
        for _ in range(len(found)):
            add(position)
            size = sizes[two_bytes(view, position)[0]]
            if size:
                position += size
                continue
            value = 0
            for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
                byte = view[position]
                position += 1
                value |= (byte & 127) << shift
                if byte < 128:
                    break
            position += value >> 1
    except (IndexError, StructError):
        # Beyond the buffer: the previous record overruns its batch and is refused for that.
        position = len(view) + 1
        rows += [position] * (len(found) - len(rows))
    found[:] = rows
    return position
