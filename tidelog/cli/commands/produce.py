"""`tidelog produce`: send lines or JSON records from standard input."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import bootstrap_option, json_option, with_client
from tidelog.cli.exits import INTERRUPTED
from tidelog.cli.record_text import JSON, LINES, NotARecord, parse
from tidelog.client.errors import RequestFailed, RequestOutcome, RequestRefused
from tidelog.client.operations import ProducerIdentity, init_producer_id
from tidelog.client.operations import produce as produce_batch
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.errors import TidelogError
from tidelog.records.batch import advance_sequence
from tidelog.records.compression import Compression
from tidelog.records.partitioner import partition_of
from tidelog.records.records import NewRecord, encode_batch

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 500_000
ATTEMPTS_MAX = 20
RETRY_SECONDS = 0.5


@click.command()
@click.argument("topic")
@click.option(
    "--format", "form", type=click.Choice([LINES, JSON]), default=LINES, show_default=True
)
@click.option(
    "--partition", type=click.IntRange(0), default=None, help="The default partition of records."
)
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Compression]),
    default="none",
    show_default=True,
)
@bootstrap_option
@json_option
def produce(
    topic: str,
    form: str,
    partition: int | None,
    compression: str,
    bootstrap: Bootstrap,
    as_json: bool,
) -> None:
    """Send each line of standard input to TOPIC as a record; returns when all are durable."""
    codec = Compression[compression.upper()]

    async def run(client: Client) -> int:
        sender = LineSender(client, topic, codec, await init_producer_id(client))
        try:
            await sender.send_all(form, partition)
        except TidelogError as error:
            error.add_note(sender.progress())
            raise
        except asyncio.CancelledError:
            # Ctrl-C. The end of the process would wait for the thread that waits for a line.
            print(f"tidelog: interrupted; {sender.progress()}", file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
        return sender.sent

    sent = with_client(bootstrap, run)
    print(
        json.dumps({"topic": topic, "records": sent}) if as_json else f"{sent} records to {topic}"
    )


@dataclass(slots=True)
class LineSender:
    """Sends idempotent batches, one after the other, each until it is acknowledged.

    It parses a group of lines before it sends any of them.
    """

    client: Client
    topic: str
    codec: Compression
    identity: ProducerIdentity
    sent: int = 0
    _whole: int = 0
    """Lines of completely sent groups."""
    _group: int = 0
    """Lines of the group in progress."""
    _uncertain: int = 0
    """Records of the present batch, once the outcome of an attempt is unknown."""
    _sequences: dict[int, int] = field(default_factory=dict)

    async def send_all(self, form: str, default_partition: int | None) -> None:
        """Send standard input, in order."""
        count = len((await self.client.topic(self.topic)).partitions)
        lines = enumerate(_lines(), start=1)
        # Runs of a few lines each would all fill partition 0 otherwise.
        keyless = SystemEntropy().uuid().int % count
        while group := await asyncio.to_thread(lambda: list(islice(lines, BATCH_RECORDS_MAX))):
            batches: dict[int, list[NewRecord]] = {}
            now_ms = SystemClock().time_ms()
            for number, line in group:
                parsed = parse(line, number, form, now_ms)
                record, place = parsed.record, parsed.partition
                if place is None:
                    place = default_partition
                if place is None and record.key is not None:
                    place = partition_of(record.key, count)
                if place is None:
                    place = keyless % count
                if not 0 <= place < count:
                    raise NotARecord(
                        f"line {number}: {self.topic} has no partition {place}, only {count}"
                    )
                batches.setdefault(place, []).append(record)
            keyless += 1
            self._group = len(group)
            for place, records in batches.items():
                for chunk in _chunks(records):
                    await self._send(place, chunk)
            self._whole += len(group)
            self._group = 0

    def progress(self) -> str:
        """The progress, in words."""
        if self.sent == 0:
            said = "no line was sent before"
        else:
            lines = [f"lines 1 to {self._whole}"] if self._whole else []
            if self._group:
                first = self._whole + 1
                lines.append(
                    f"{self.sent - self._whole} of the lines {first} to {self._whole + self._group}"
                )
            said = f"{' and '.join(lines)} were sent before and are durable"
        return f"{said}; {self._uncertain} more may be durable" if self._uncertain else said

    async def _send(self, partition: int, records: list[NewRecord]) -> None:
        sequence = self._sequences.get(partition, 0)
        batch = encode_batch(
            records,
            compression=self.codec,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=sequence,
        )
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await produce_batch(self.client, self.topic, partition, batch)
                break
            except asyncio.CancelledError:
                self._uncertain = len(records)
                raise
            except (RequestRefused, RequestFailed) as error:
                if error.outcome is RequestOutcome.UNKNOWN:
                    self._uncertain = len(records)
                # The same sequence again: the broker recognises an appended batch.
                final = isinstance(error, RequestRefused) and not error.retriable
                if final or attempt == ATTEMPTS_MAX:
                    raise
                await SystemClock().sleep(RETRY_SECONDS)
        self._uncertain = 0
        self._sequences[partition] = advance_sequence(sequence, len(records))
        self.sent += len(records)


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\n")


def _chunks(records: list[NewRecord]) -> Iterator[list[NewRecord]]:
    chunk: list[NewRecord] = []
    size_bytes = 0
    for record in records:
        size = len(record.value or b"") + len(record.key or b"")
        if chunk and size_bytes + size > BATCH_BYTES_MAX:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(record)
        size_bytes += size
    yield chunk
