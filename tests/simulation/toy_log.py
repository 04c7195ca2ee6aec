"""A small log on the simulated store, which tries the harness before it judges the broker.

One sequence of numbered objects holds all entries, and every broker may append to it. It is correct
by construction and slow. `ToyFaults` break it in known ways, and the checker must notice them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.actors.log_client import Fetched, NoAnswer, OutgoingBatch, RequestRefused
from tests.simulation.rules.history import Isolation, Key, StoredBatch
from tests.simulation.world.process import SimulatedProcess
from tidelog.clock import Clock
from tidelog.network import Network
from tidelog.storage.object_store import Buffer, ObjectStore, StoreError
from tidelog.storage.sequence import Mine, Sequence

PORT = 9092
_ANSWER_SECONDS_MAX = 8.0
_APPEND_SECONDS_MAX = 6.0


@dataclass(slots=True)
class ToyFaults:
    """Known ways of being wrong."""

    acknowledge_early: bool = False
    no_dedupe: bool = False
    watermark_ahead: int = 0
    stale_reads: bool = False


@dataclass(slots=True)
class _State:
    """The log as replayed from its entries."""

    next_number: int = 0
    batches: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    appended: dict[tuple[Key, int, int], int] = field(default_factory=dict)
    sequences: dict[tuple[Key, int], int] = field(default_factory=dict)

    def end(self, key: Key) -> int:
        batches = self.batches.get(key, [])
        return int(batches[-1]["base"]) + len(batches[-1]["values"]) if batches else 0

    def apply(self, entry: dict[str, Any]) -> int:
        key = Key(*entry["key"])
        base = self.end(key)
        self.batches.setdefault(key, []).append({**entry, "base": base})
        if entry["pid"] >= 0:
            self.appended[key, entry["pid"], entry["sequence"]] = base
            after = entry["sequence"] + len(entry["values"])
            self.sequences[key, entry["pid"]] = after
        return base


class ToyBroker:
    """Serves the log; more than one may run at once."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        network: Network,
        writer: SimulatedProcess,
        faults: ToyFaults | None = None,
    ) -> None:
        self._sequence = Sequence(store, clock, "toy/", ".json", lambda data: _writer_id(data))
        self._network = network
        self._writer = writer
        self._faults = faults if faults is not None else ToyFaults()
        self._state = _State()
        self._lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._broken: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Serve for ever; ends when an append stays undecided."""
        self._broken = asyncio.get_running_loop().create_future()
        while True:
            try:
                await self._catch_up()
                break
            except StoreError:
                await asyncio.sleep(0.1)
        await self._network.listen(lambda: _Lines(self._answer), "0.0.0.0", PORT)
        await self._broken

    def _answer(self, request: dict[str, Any], transport: asyncio.Transport) -> None:
        task = asyncio.create_task(self._serve(request, transport))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _serve(self, request: dict[str, Any], transport: asyncio.Transport) -> None:
        try:
            answer = await getattr(self, f"_{request['kind']}")(request)
        except StoreError as error:
            answer = {"error": 7, "name": f"REQUEST_TIMED_OUT {type(error).__name__}"}
        transport.write(json.dumps({"id": request["id"], **answer}).encode() + b"\n")

    async def _produce(self, request: dict[str, Any]) -> dict[str, Any]:
        entry = request["entry"]
        if self._faults.acknowledge_early:
            append = asyncio.create_task(self._append(entry))
            self._tasks[append] = None  # type: ignore[index]
            return {"base": self._state.end(Key(*entry["key"]))}
        return await self._append(entry)

    async def _append(self, entry: dict[str, Any]) -> dict[str, Any]:
        async with self._lock:
            while True:
                refused = self._validate(entry)
                if refused is not None:
                    # Another broker may have appended the entries before this one.
                    await self._catch_up()
                    refused = self._validate(entry)
                if refused is not None:
                    return refused
                number = self._state.next_number
                writer_id = f"{self._writer.name[:6]}{self._writer.pid:04d}{number:06d}"
                body = json.dumps({"writer": writer_id, **entry}).encode()
                try:
                    result = await self._sequence.append(
                        number, body, writer_id.encode(), _APPEND_SECONDS_MAX
                    )
                except StoreError:
                    assert self._broken is not None
                    if not self._broken.done():
                        self._broken.set_result(None)
                    raise
                data = body if isinstance(result, Mine) else bytes(result.data)
                base = self._state.apply(json.loads(data))
                self._state.next_number += 1
                if isinstance(result, Mine):
                    return {"base": base}

    def _validate(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        if entry["pid"] < 0 or self._faults.no_dedupe:
            return None
        key = Key(*entry["key"])
        before = self._state.appended.get((key, entry["pid"], entry["sequence"]))
        if before is not None:
            return {"base": before}
        if entry["sequence"] != self._state.sequences.get((key, entry["pid"]), 0):
            return {"error": 45, "name": "OUT_OF_ORDER_SEQUENCE_NUMBER"}
        return None

    async def _fetch(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._faults.stale_reads:
            async with self._lock:
                await self._catch_up()
        answers = []
        for name, partition, position in request["positions"]:
            key = Key(name, partition)
            batches = [
                batch
                for batch in self._state.batches.get(key, [])
                if batch["base"] + len(batch["values"]) > position
            ]
            answers.append([key, batches[:20], self._state.end(key) + self._faults.watermark_ahead])
        return {"partitions": answers}

    async def _catch_up(self) -> None:
        async for entry in self._sequence.iterate(self._state.next_number):
            self._state.apply(json.loads(bytes(entry.data)))
            self._state.next_number = entry.number + 1


class ToyClient:
    """See LogClient."""

    def __init__(self, network: Network, clock: Clock, process: SimulatedProcess) -> None:
        self._network = network
        self._clock = clock
        self._process = process
        self._hosts: list[str] = ["broker-0", "broker-0b"]
        self.offset_host = ""
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = 0
        self._producers = 0
        self._connecting = asyncio.Lock()

    async def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> bool:
        """Do nothing: the toy's topics exist without being created."""
        return False

    async def delete_topic(self, topic: str) -> None:
        """Refuse: the toy keeps its topics."""
        raise NotImplementedError("the toy keeps its topics")

    async def replace_topic(self, topic: str, partitions: int) -> bool:
        """Refuse: the toy keeps its topics."""
        raise NotImplementedError("the toy keeps its topics")

    async def init_producer_id(self) -> tuple[int, int]:
        self._producers += 1
        return self._process.pid * 1000 + self._producers, 0

    async def produce(self, batch: OutgoingBatch, acks: int = -1) -> int:
        entry = {
            "key": batch.key,
            "pid": batch.producer_id,
            "sequence": batch.base_sequence,
            "values": batch.values,
        }
        return int((await self._ask({"kind": "produce", "entry": entry}))["base"])

    async def produce_and_end(self, batch: OutgoingBatch) -> tuple[int, int | None]:
        """Send one request after the other, which is all that the toy can do."""
        base_offset = await self.produce(batch)
        return base_offset, await self.end_offset(batch.key)

    async def fetch(
        self, positions: Mapping[Key, int], isolation: Isolation, wait_seconds: float
    ) -> list[Fetched]:
        wanted = [[*key, position] for key, position in positions.items()]
        answer = await self._ask({"kind": "fetch", "positions": wanted})
        if not any(batches for _, batches, _ in answer["partitions"]):
            await self._clock.sleep(wait_seconds)
        return [
            _fetched(Key(*key), positions[Key(*key)], batches, watermark)
            for key, batches, watermark in answer["partitions"]
        ]

    async def end_offset(self, key: Key, isolation: Isolation = "read_committed") -> int:
        answer = await self._ask({"kind": "fetch", "positions": [[*key, 0]]})
        return int(answer["partitions"][0][2])

    def forget(self) -> None:
        """Do nothing: the toy has no leaders."""

    async def log_start(self, key: Key) -> int:
        return 0

    async def delete_records(self, key: Key, offset: int) -> int:
        """Refuse: the toy keeps its records."""
        raise NotImplementedError("the toy keeps its records")

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._requests += 1
        number = self._requests
        try:
            async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                async with self._connecting:
                    transport = await self._connected()
                future = asyncio.get_running_loop().create_future()
                self._waiting[number] = future
                transport.write(json.dumps({"id": number, **request}).encode() + b"\n")
                answer: dict[str, Any] = await future
        except OSError as error:
            if self._transport is not None:
                self._transport.abort()
            raise NoAnswer(type(error).__name__) from error
        finally:
            self._waiting.pop(number, None)
        if "error" in answer:
            raise RequestRefused(answer["error"], answer["name"])
        return answer

    async def _connected(self) -> asyncio.Transport:
        if self._transport is None or self._transport.is_closing():
            self._hosts.append(self._hosts.pop(0))
            self._transport = await self._network.connect(
                lambda: _Lines(self._answered, self._lost), self._hosts[0], PORT
            )
        return self._transport

    def _answered(self, answer: dict[str, Any], transport: asyncio.Transport) -> None:
        future = self._waiting.pop(answer["id"], None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _lost(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("lost"))


class _Lines(asyncio.Protocol):
    """A protocol of JSON documents, one a line."""

    def __init__(self, receive: Any, lost: Any = None) -> None:
        self._receive = receive
        self._lost = lost
        self._pending = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._receive(json.loads(line), self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is not None:
            self._lost()


def _fetched(key: Key, position: int, batches: list[dict[str, Any]], watermark: int) -> Fetched:
    records = [
        (batch["base"] + number, value)
        for batch in batches
        for number, value in enumerate(batch["values"])
        if batch["base"] + number >= position
    ]
    stored = [
        StoredBatch(
            key,
            batch["base"],
            batch["base"] + len(batch["values"]) - 1,
            batch["pid"],
            0,
            batch["sequence"],
            len(batch["values"]),
            values=tuple(batch["values"]),
        )
        for batch in batches
    ]
    next_offset = stored[-1].last_offset + 1 if stored else position
    return Fetched(key, records, next_offset, watermark, watermark, stored)


def _writer_id(data: Buffer) -> bytes:
    return str(json.loads(bytes(data))["writer"]).encode()
