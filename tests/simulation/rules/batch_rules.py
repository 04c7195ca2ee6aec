"""Rules on the record batches that lie in the log at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import Key, StoredBatch


def _by_key(batches: list[StoredBatch]) -> dict[Key, list[StoredBatch]]:
    by_key: dict[Key, list[StoredBatch]] = defaultdict(list)
    for batch in batches:
        by_key[batch.key].append(batch)
    for of_key in by_key.values():
        of_key.sort(key=lambda batch: batch.base_offset)
    return by_key


def sequences(batches: list[StoredBatch], *, whole: bool) -> Iterator[Anomaly]:
    """Each (producer id, epoch, sequence) is in a partition at most once, and sequences have no
    holes (invariant 4). `whole`: no batch has left the WAL, so each producer begins with sequence
    0."""
    for key, of_key in _by_key(batches).items():
        next_sequence: dict[tuple[int, int], int] = {}
        for batch in of_key:
            if batch.producer_id < 0 or batch.control or batch.base_sequence < 0:
                # Adopted batches have a producer and no sequence; the rules on sinks count them.
                continue
            producer = (batch.producer_id, batch.producer_epoch)
            expected = next_sequence.get(producer, 0 if whole else batch.base_sequence)
            if batch.base_sequence != expected:
                name = "sequence-twice" if batch.base_sequence < expected else "sequence-hole"
                text = f"{key}@{batch.base_offset}: {producer} {batch.base_sequence}"
                yield Anomaly(name, f"{text}, expected {expected}")
            next_sequence[producer] = (batch.base_sequence + batch.records) % 2**31


def gaps(batches: list[StoredBatch]) -> Iterator[Anomaly]:
    """Offsets of one WAL follow each other (rule C6)."""
    for key, of_key in _by_key(batches).items():
        for before, after in pairwise(of_key):
            if after.base_offset != before.last_offset + 1:
                text = f"{key}: {before.last_offset} is followed by {after.base_offset}"
                yield Anomaly("offset-gap", text)
