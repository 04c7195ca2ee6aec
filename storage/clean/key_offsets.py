"""The latest offset of each key in a range of a log, for log compaction. Pure.

Whole keys are compared, not hashes, so a collision cannot lose a record.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records.parse.row_arrays import boolean_array, integers_of, nulls_of
from tidelog.records.parse.varints import Integers

NO_OFFSET = -1
KEYS_BYTES_MAX = 1 << 30
"""The bytes of all keys. One Arrow array holds them, which has room for less than 2 GiB."""
_BYTES_PER_KEY = 40
"""Memory per key beside the key itself: offsets, and Arrow's table during lookups."""


class KeyOffsets:
    """Keys with their latest offsets.

    A lookup costs a pass over all keys, so callers look up many at once.

    New records wait until they outnumber the known keys. So all merges together cost about as much
    as a few passes.
    """

    def __init__(self) -> None:
        self._keys: pa.Array = pa.nulls(0, pa.binary())
        self._offsets: Integers = np.zeros(0, np.int64)
        self._keys_bytes = 0
        self._new_keys: list[pa.Array] = []
        self._new_offsets: list[Integers] = []
        self._new_count = self._new_bytes = 0

    def __len__(self) -> int:
        self._merge()
        return len(self._keys)

    def add(self, keys: pa.Array, offsets: Integers) -> None:
        """Add records, in any order; records without a key are ignored."""
        if keys.null_count:
            present = ~nulls_of(keys)
            keys, offsets = keys.filter(boolean_array(present)), offsets[present]
        if not len(keys):
            return
        self._new_keys.append(keys)
        self._new_offsets.append(offsets)
        self._new_count += len(keys)
        self._new_bytes += _bytes_of(keys)
        if self._new_count > len(self._keys):
            self._merge()

    def fills(self, bytes_max: int) -> bool:
        """True at the limit of the keys, or if a lookup would need about `bytes_max` of memory."""
        if not self._is_full(bytes_max, self._keys_bytes + self._new_bytes, self._new_count):
            return False
        self._merge()
        return self._is_full(bytes_max, self._keys_bytes, 0)

    def _is_full(self, bytes_max: int, keys_bytes: int, more: int) -> bool:
        need = 2 * keys_bytes + _BYTES_PER_KEY * (len(self._keys) + more)
        return need >= bytes_max or keys_bytes >= KEYS_BYTES_MAX

    def latest(self, keys: pa.Array | pa.ChunkedArray) -> Integers:
        """The latest offset of each key; NO_OFFSET for unknown keys and null."""
        self._merge()
        found = pc.index_in(keys, value_set=self._keys, skip_nulls=True)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        places = integers_of(found, len(self._keys))
        latest: Integers = np.append(self._offsets, NO_OFFSET)[places]
        return latest

    def _merge(self) -> None:
        if not self._new_count:
            return
        keys = pa.concat_arrays([self._keys, *self._new_keys])
        offsets = np.concatenate([self._offsets, *self._new_offsets])
        self._new_keys, self._new_offsets = [], []
        self._new_count = self._new_bytes = 0
        encoded = keys.dictionary_encode()
        self._keys = encoded.dictionary
        self._offsets = np.full(len(self._keys), NO_OFFSET, np.int64)
        self._keys_bytes = _bytes_of(self._keys)
        np.maximum.at(self._offsets, integers_of(encoded.indices), offsets)


def _bytes_of(keys: pa.Array) -> int:
    """The bytes of the keys alone, even if they are a slice of a larger array."""
    return int(pc.sum(pc.binary_length(keys)).as_py() or 0)
