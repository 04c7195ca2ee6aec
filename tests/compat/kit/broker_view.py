"""A broker's batches, visible records and groups' offsets, read by Tidelog's own client. The tests
compare foreign readers with these."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from tidelog.client.committed import visible_batches
from tidelog.client.errors import RequestRefused
from tidelog.client.groups.admin import Place, committed_offsets
from tidelog.client.operations import LATEST, IsolationLevel, fetch, list_offsets
from tidelog.client.patience import ClientRetrySettings, Patience
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import BatchHeader, iterate_batches
from tidelog.records.records import decode_batch

T = TypeVar("T")
LOADING_MS_MAX = 30_000


class StoredRecord(NamedTuple):
    """A record at its offset."""

    offset: int
    value: bytes


class PartitionView(NamedTuple):
    """A partition as one isolation level shows it."""

    batches: list[BatchHeader]
    """All fetched batches, including markers and aborted batches."""
    records: list[StoredRecord]
    """The records that an application gets."""
    end: int
    """The last stable offset, or the high watermark for read_uncommitted."""

    @property
    def values(self) -> list[bytes]:
        """The records' values, in order."""
        return [each.value for each in self.records]


def with_client(bootstrap: str, use: Callable[[Client], Awaitable[T]]) -> T:
    """Run a coroutine with a client that is closed behind it."""
    host, _, port = bootstrap.rpartition(":")

    async def run() -> T:
        async with Client(SocketNetwork(), SystemClock(), [(host, int(port))]) as client:
            return await use(client)

    return asyncio.run(run())


def partition_view(
    bootstrap: str,
    topic: str,
    partition: int,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> PartitionView:
    """All batches of a partition, up to its present end."""

    async def use(client: Client) -> PartitionView:
        end = (await list_offsets(client, topic, partition, LATEST, isolation)).offset
        batches: list[BatchHeader] = []
        records: list[StoredRecord] = []
        offset = 0
        while offset < end:
            found = await fetch(client, topic, partition, offset, isolation=isolation)
            leaves_out = found.aborted if isolation is IsolationLevel.READ_COMMITTED else []
            for data in found.records:
                batches += [header for _, header in iterate_batches(data)]
                for header, batch in visible_batches(data, leaves_out):
                    found_records = decode_batch(batch, 0, header)
                    records += [StoredRecord(r.offset, r.value or b"") for r in found_records]
                offset = batches[-1].last_offset + 1
        return PartitionView(batches, records, end)

    return with_client(bootstrap, use)


def group_offsets(bootstrap: str, group: str) -> dict[Place, int]:
    """The committed offsets, without those that an open transaction may commit."""

    async def use(client: Client) -> dict[Place, int]:
        clock = SystemClock()
        patience = Patience(clock, SeededEntropy(0), ClientRetrySettings(), LOADING_MS_MAX)
        while True:
            try:
                return await committed_offsets(client, group)
            except RequestRefused as refused:
                if refused.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    raise
                await patience.wait(refused)

    return with_client(bootstrap, use)


def check_sequences(batches: Iterable[BatchHeader]) -> int:
    """Each producer's sequences in one partition begin at 0 with each epoch, without a gap or a
    repetition. Returns the number of records with sequences."""
    next_sequence: dict[tuple[int, int], int] = defaultdict(int)
    epochs: dict[int, int] = {}
    numbered = 0
    for header in batches:
        producer = header.producer_id, header.producer_epoch
        assert header.producer_epoch >= epochs.get(header.producer_id, 0), f"older epoch: {header}"
        epochs[header.producer_id] = header.producer_epoch
        if header.is_control or header.producer_id < 0:
            continue
        assert header.base_sequence == next_sequence[producer], f"out of sequence: {header}"
        next_sequence[producer] += header.record_count
        numbered += header.record_count
    return numbered
