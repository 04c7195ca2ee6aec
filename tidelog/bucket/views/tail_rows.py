"""The batches of a partition's tail as table rows. Pure.

Verified batches (`wal/read/verify`) go through the code that makes segments of them. So a row is
the same before a roll and after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptObject, TidelogError
from tidelog.records.batch import headers_of
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.parse.varints import Booleans, Integers
from tidelog.records.row_columns import AbortedRange
from tidelog.records.rows.row_decoding import BatchHeaders, decode_rows
from tidelog.storage.object_store import Buffer
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.verify import VerifiedBatches


class TailBatches(NamedTuple):
    """The batches of one extent: their positions in its bytes, and their headers."""

    positions: Integers
    headers: BatchHeaders

    @classmethod
    def of(cls, verified: VerifiedBatches) -> TailBatches:
        """The headers of verified batches."""
        positions = np.array(verified.positions, np.int64)
        return cls(positions, headers_of(verified.data, positions))

    @property
    def base_offsets(self) -> Integers:
        return self.headers["base_offset"].astype(np.int64)

    @property
    def last_offsets(self) -> Integers:
        return self.base_offsets + self.headers["last_offset_delta"].astype(np.int64)


def rows_of(
    extent: Extent,
    data: Buffer,
    batches: TailBatches,
    start: int,
    upper: int,
    aborted: Sequence[AbortedRange],
    ordinals: Integers | None,
    kept: Booleans | None = None,
) -> Iterator[pa.RecordBatch]:
    """The extent's rows at offsets [start, upper), some MiB at a time.

    Markers and the rows of `aborted` transactions are left out. `kept` selects batches. Raises
    CorruptObject; the rows before that are right.
    """
    wanted = (batches.last_offsets >= start) & (batches.base_offsets < upper)
    if kept is not None:
        wanted &= kept
    chosen = np.flatnonzero(wanted)
    try:
        for rows in decode_rows(
            data,
            batches.positions[chosen],
            ordinals=None if ordinals is None else ordinals[chosen],
            aborted=aborted,
            check_crc=False,
        ):
            offsets = integers_of(rows.column("offset"))
            first, following = np.searchsorted(offsets, [start, upper])
            if first < following:
                yield rows.slice(first, following - first)
    except TidelogError as error:
        raise _corrupt(extent, error) from error


def _corrupt(extent: Extent, error: TidelogError) -> CorruptObject:
    return CorruptObject(
        extent.key,
        f"the record batches of offsets {extent.base_offset} to {extent.last_offset}: {error}",
    )
