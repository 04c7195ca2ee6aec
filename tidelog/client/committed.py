"""The read_committed filter of a consumer for fetched batches (KIP-98). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.protocol.schemas.fetch import AbortedTransaction
from tidelog.records.batch import BatchHeader, iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.control import MarkerType, parse_marker


def visible_batches(
    records: Buffer, aborted: Iterable[AbortedTransaction]
) -> Iterator[tuple[BatchHeader, Buffer]]:
    """The data batches outside aborted transactions, without markers.

    With an empty `aborted` these are all data batches, as read_uncommitted returns.
    """
    coming = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    aborting: set[int] = set()
    for position, header in iterate_batches(records):
        while coming and coming[-1].first_offset <= header.last_offset:
            aborting.add(coming.pop().producer_id)
        data = memoryview(records)[position : position + header.size_bytes]
        if header.is_control:
            if header.producer_id in aborting and _is_abort(data):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield header, data


def _is_abort(batch: Buffer) -> bool:
    marker = parse_marker(batch)
    return marker is not None and marker.type is MarkerType.ABORT
