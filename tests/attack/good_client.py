"""A well-behaved client: it produces small records, fetches them, and measures its waiting times.

A round begins every 20 ms, or when the round before is over. Rounds that become due during a longer
one count as well, each from its due time. So a broker that stands still for a second slows down all
rounds of that second.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tests.unit.broker.loopback import Client
from tests.unit.broker.one_broker import produce_request
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.schemas.produce import ProduceResponse
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, decode_records, encode_batch

PERIOD_SECONDS = 0.02
ROUNDS_PER_CONNECTION = 25
REQUEST_SECONDS_MAX = 15.0
"""How long a client waits for an answer. Kafka's clients wait for 30 s."""
CHECK_SECONDS_MAX = 60.0
RECORD_BYTES = 512
_CODECS = (Compression.NONE, Compression.LZ4)


@dataclass(slots=True)
class Seen:
    """The client's observations of some time."""

    seconds: list[float] = field(default_factory=list)
    """For each round, the seconds from its due time to the record's return."""
    failures: list[str] = field(default_factory=list)
    """Rounds that had to be repeated, with their errors."""

    def note(self, seconds: float) -> None:
        """Note the time of a round."""
        while seconds > 0:
            self.seconds.append(seconds)
            seconds -= PERIOD_SECONDS

    def quantile(self, share: float) -> float:
        """A quantile of the rounds, in seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class GoodClient:
    """A client of a topic with one partition, to which no other client writes."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self._address = address
        self._topic = topic
        self._client: Client | None = None
        self._rounds = 0
        self.acknowledged: dict[int, bytes] = {}
        """Values by offset."""

    async def create_topic(self) -> None:
        """Create the topic."""
        client = Client(*await asyncio.open_connection(*self._address))
        topic = CreatableTopic(name=self._topic, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        answer = await client.ask(request, CreateTopicsResponse, 5)
        _check(answer.topics[0].error_code)
        await client.close()

    async def work(self, seen: Seen, stopping: asyncio.Event) -> None:
        """Run one round after the other until `stopping` is set."""
        while not stopping.is_set():
            began = time.monotonic()
            await self._round_at_last(seen, stopping)
            took = time.monotonic() - began
            seen.note(took)
            await asyncio.sleep(max(0.0, PERIOD_SECONDS - took))

    async def check(self) -> str:
        """Check that every acknowledged record is there, at its offset. Returns the fault, or an
        empty text."""
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                return "" if await self._reads_back() else "records were lost"
        except (OSError, EOFError) as error:
            return f"not read back: {type(error).__name__} {error}"

    async def _reads_back(self) -> bool:
        found: dict[int, bytes] = {}
        end = max(self.acknowledged, default=-1) + 1
        offset = 0
        while offset < end:
            records = await self._fetch(offset)
            if not records:
                return False
            found |= {at: value for at, value in records.items() if at in self.acknowledged}
            offset = max(records) + 1
        return found == self.acknowledged

    async def close(self) -> None:
        """Hang up."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _round_at_last(self, seen: Seen, stopping: asyncio.Event) -> None:
        """Run a round, and repeat it after failures, as clients do, until it succeeds or `stopping`
        is set."""
        while not seen.failures or not stopping.is_set():
            try:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    await self._round()
                return
            except (OSError, EOFError) as error:  # a timeout is an OSError too
                seen.failures.append(f"{type(error).__name__}: {error}")
                if self._client is not None:
                    self._client.writer.transport.abort()
                await self.close()
                await asyncio.sleep(PERIOD_SECONDS)

    async def _round(self) -> None:
        self._rounds += 1
        if self._rounds % ROUNDS_PER_CONNECTION == 0:
            await self.close()
        value = (b"%d " % self._rounds).ljust(RECORD_BYTES, b".")
        codec = _CODECS[self._rounds % len(_CODECS)]
        # The timestamp is the present time: retention would delete older records before the check.
        record = NewRecord(value, timestamp=time.time_ns() // 1_000_000)
        batch = encode_batch([record], compression=codec)
        request = produce_request(self._topic, 0, batch, -1, int(REQUEST_SECONDS_MAX * 1000))
        client = await self._connected()
        answer = await client.ask(request, ProduceResponse, 9)
        result = answer.responses[0].partition_responses[0]
        _check(result.error_code)
        self.acknowledged[result.base_offset] = value
        records = await self._fetch(result.base_offset)
        assert records[result.base_offset] == value

    async def _fetch(self, offset: int) -> dict[int, bytes]:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=self._topic, partitions=[partition])],
        )
        client = await self._connected()
        answer = await client.ask(request, FetchResponse, 12)
        result = answer.responses[0].partitions[0]
        _check(result.error_code)
        records = decode_records(bytes(result.records or b""))
        return {record.offset: record.value or b"" for record in records}

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(*await asyncio.open_connection(*self._address))
        return self._client


def _check(error_code: int) -> None:
    """An error fails the round, as a connection that ends does."""
    if error_code:
        raise ConnectionError(f"answered with {ErrorCode(error_code).name}")
