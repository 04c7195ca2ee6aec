"""Small batches that are large when they are decompressed."""

from __future__ import annotations

from functools import partial

from tests.attack.attack import Target, attack
from tests.attack.wire import Wire, again_and_again, creation, request_bytes, side_by_side
from tests.unit.broker.one_broker import produce_request
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, encode_batch

VALUE_BYTES = 95_000_000


async def _bomb(target: Target, codec: Compression, records: int = 1) -> bytes:
    """A request with one batch, for a topic that exists only for it."""
    wire = await Wire.connect(target.kafka)
    await wire.ask(creation("bombs", 1))
    wire.close()
    value = bytes(VALUE_BYTES // records)
    batch = encode_batch([NewRecord(value)] * records, compression=codec)
    return request_bytes(produce_request("bombs", 0, batch, -1, 30_000), 9)


@attack(seconds=20)
async def batches_that_decompress_to_95_megabytes(target: Target) -> None:
    """40 connections each send one batch of some kilobytes (zstd) after the other that decompresses
    to 95 MB."""
    bomb = await _bomb(target, Compression.ZSTD)
    await side_by_side(40, lambda _: again_and_again(partial(_throw, target, bomb, 1), 0.01))


@attack(seconds=20)
async def pipelined_batches_that_decompress_to_95_megabytes(target: Target) -> None:
    """One connection sends 40 batches at a time (gzip) that decompress to 95 MB each."""
    bomb = await _bomb(target, Compression.GZIP)
    await again_and_again(partial(_throw, target, bomb, 40), 0.01)


@attack(seconds=20)
async def batches_of_a_million_small_records(target: Target) -> None:
    """20 connections each send one batch of some kilobytes (zstd) after the other that decompresses
    to a million records."""
    bomb = await _bomb(target, Compression.ZSTD, records=1_000_000)
    await side_by_side(20, lambda _: again_and_again(partial(_throw, target, bomb, 1), 0.01))


async def _throw(target: Target, bomb: bytes, count: int) -> None:
    wire = await Wire.connect(target.kafka)
    try:
        while True:
            await wire.send(bomb * count)
            for _ in range(count):
                await wire.receive()
    finally:
        wire.close()
