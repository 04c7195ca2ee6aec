"""The object store of a simulation: one bucket; requests are slow, lost, late or repeated."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.process import SimulatedProcess
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    StoredObject,
    StoreError,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
    joined,
)
from tidelog.storage.stores.memory import MemoryStore

T = TypeVar("T")
Kind = Literal["get", "head", "put", "list", "delete"]
Fault = Literal["none", "refused", "reply lost", "request lost", "delayed", "repeated"]

_APPLIED_AFTER = 0.6
"""The part of a request's time that passes before the store acts on it."""


@dataclass(slots=True)
class StoreSettings:
    """How the store behaves. Probabilities are per request; seconds are virtual."""

    put_seconds_min: float = 0.005
    put_seconds_max: float = 0.025
    get_seconds_min: float = 0.002
    get_seconds_max: float = 0.012
    slow_probability: float = 0.01
    slow_seconds_max: float = 1.5
    refused_probability: float = 0.0
    """A request fails, and is certainly not applied (503)."""
    reply_lost_probability: float = 0.0
    """A write is applied and its outcome is unknown to the caller."""
    request_lost_probability: float = 0.0
    """A write is not applied and its outcome is unknown to the caller."""
    delayed_probability: float = 0.0
    """A write is applied later, and its outcome is unknown to the caller."""
    repeated_probability: float = 0.0
    """A conditional put arrives twice, the second time later."""
    late_seconds_max: float = 30.0
    """How much later delayed and repeated writes arrive."""
    unknown_seconds_max: float = 5.0
    """How long a caller waits before it learns that the outcome is unknown."""
    page_entries_max: int = 50


class _Call:
    """One request on its way to the store or back."""

    __slots__ = (
        "action",
        "applied",
        "apply_handle",
        "conditional",
        "fault",
        "future",
        "key",
        "kind",
        "sent_at",
    )

    def __init__(
        self,
        kind: Kind,
        key: str,
        action: Callable[[], object],
        conditional: bool,
        fault: Fault,
        future: asyncio.Future[Any],
        sent_at: float,
    ) -> None:
        self.kind = kind
        self.key = key
        self.action = action
        self.conditional = conditional
        self.fault = fault
        self.future = future
        self.sent_at = sent_at
        self.applied = False
        self.apply_handle: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class PutOutage:
    """A time in which the store refused all puts. `written_at`: when each object was written
    before."""

    began_at: float
    ends_at: float
    written_at: Mapping[str, float]


class SimulatedStore:
    """One bucket for all processes: linearizable, read-after-write consistent, and unreliable.

    The store applies a request that was sent, late or never, even if the sender dies.
    """

    def __init__(
        self, loop: SimulatedLoop, seed: int | str, settings: StoreSettings | None = None
    ) -> None:
        self.loop = loop
        self.settings = settings if settings is not None else StoreSettings()
        self.memory = MemoryStore(SimulatedClock(loop), "memory://simulation")
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._random = random.Random(f"store {seed}")
        self._under_way: dict[SimulatedProcess, dict[_Call, None]] = {}
        self._unavailable_until = 0.0
        self._unavailable_share = 0.0
        self._unavailable_to_writes = False
        self._isolated: dict[SimulatedProcess, tuple[float, str]] = {}
        self.put_outages: list[PutOutage] = []
        self._written_at: dict[str, float] = {}
        self.sent_at: dict[str, float] = {}
        """When the request was sent that wrote each object."""
        self.on_put: Callable[[str], None] = lambda _key: None
        """Called with the key of each object that was written, at that moment."""

    def of(self, process: SimulatedProcess) -> ProcessStore:
        """The store as this process sees it: the ObjectStore that its code takes."""
        if process not in self._under_way:
            self._under_way[process] = {}
            process.at_death(lambda: self._process_died(process))
        return ProcessStore(self, process)

    def fail_for(self, seconds: float, share: float = 0.9, *, writes_only: bool = False) -> None:
        """A burst: refuse this share of the requests for a while (503 Slow Down)."""
        self._unavailable_until = self.loop.time() + seconds
        self._unavailable_share = share
        self._unavailable_to_writes = writes_only
        self.counts["bursts"] += 1
        what = "writes" if writes_only else "requests"
        self._note(f"refuses {share:.2f} of the {what} for {seconds:.3f} s")

    def refuse_puts_for(self, seconds: float) -> None:
        """Serve reads and refuse all puts for a while."""
        now = self.loop.time()
        if self._refuses_puts(now):
            outage = self.put_outages[-1]
            outage.ends_at = max(outage.ends_at, now + seconds)
        else:
            self.put_outages.append(PutOutage(now, now + seconds, dict(self._written_at)))
        self.counts["refusals of puts"] += 1
        self._note(f"refuses all puts for {seconds:.3f} s")

    def _refuses_puts(self, now: float) -> bool:
        return bool(self.put_outages) and now < self.put_outages[-1].ends_at

    def isolate(self, process: SimulatedProcess, seconds: float, prefix: str = "") -> None:
        """Let no request of this process for keys with a prefix through for a while."""
        self._isolated[process] = (self.loop.time() + seconds, prefix)
        self.counts["isolations"] += 1
        self._note(f"{prefix!r} is out of reach of {process.name} for {seconds:.3f} s")

    def heal(self) -> None:
        """Serve every request from now on. Requests that are already delayed still arrive."""
        self._unavailable_until = 0.0
        self._isolated.clear()
        if self._refuses_puts(self.loop.time()):
            self.put_outages[-1].ends_at = self.loop.time()
        for name in ("refused", "reply_lost", "request_lost", "delayed", "repeated", "slow"):
            setattr(self.settings, f"{name}_probability", 0.0)
        self._note("healed")

    def keys(self, prefix: str) -> list[str]:
        """The keys at this moment, without a request."""

        async def listed() -> list[str]:
            return [meta.key async for meta in self.memory.list(prefix)]

        return finish(listed())

    def in_flight(self, process: SimulatedProcess, kind: Kind = "put") -> int:
        """How many requests of a process the store has not acted on."""
        calls = self._under_way.get(process, {})
        return sum(1 for call in calls if call.kind == kind and not call.applied)

    # --- requests ---

    def request(
        self,
        process: SimulatedProcess,
        kind: Kind,
        key: str,
        action: Callable[[], T],
        conditional: bool = False,
    ) -> asyncio.Future[T]:
        """Send a request. The store calls `action` when it applies the request."""
        future: asyncio.Future[T] = self.loop.create_future()
        if not process.alive:
            return future
        self.counts[kind] += 1
        writes = kind in ("put", "delete")
        fault = self._fault(process, kind, key, conditional)
        call = _Call(kind, key, action, conditional, fault, future, self.loop.time())
        self._under_way[process][call] = None
        future.add_done_callback(
            lambda _: self._under_way[process].pop(call, None), context=self.loop.system_context
        )
        if fault != "none":
            self.counts[fault] += 1
        seconds = self._seconds(writes)
        unknown_after = seconds + self._random.uniform(0.0, self.settings.unknown_seconds_max)
        if fault == "refused":
            error: StoreError = StoreNotApplied(key, "503: slow down")
            self._later(seconds, self._fail, call, error)
            return future
        if fault in ("request lost", "delayed"):
            self._later(unknown_after, self._fail, call, StoreOutcomeUnknown(key, "timed out"))
            if fault == "delayed":
                late = self._random.uniform(0.0, self.settings.late_seconds_max)
                call.apply_handle = self._later(seconds + late, self._apply, call, 0.0)
            return future
        call.apply_handle = self._later(
            _APPLIED_AFTER * seconds, self._apply, call, (1 - _APPLIED_AFTER) * seconds
        )
        return future

    def _apply(self, call: _Call, reply_seconds: float) -> None:
        again = call.applied
        call.applied = True
        # Here and below: no reference cycles, as no garbage is collected during the simulation.
        call.apply_handle = None
        outcome: object = None
        error: StoreError | None = None
        try:
            outcome = call.action()
        except StoreError as refused:
            error = refused.with_traceback(None)
        if call.kind == "put" and error is None:
            self._written_at[call.key] = self.loop.time()
            self.sent_at[call.key] = call.sent_at
            self.on_put(call.key)
        if call.kind == "delete" and error is None:
            self.counts["deleted"] += 1
            self.counts[f"deleted of {call.key.partition('/')[0]}/"] += 1
        said = "ok" if error is None else type(error).__name__
        self._note(f"{call.kind} {call.key} {said} {'' if call.fault == 'none' else call.fault}")
        if again or call.fault == "delayed":
            return
        if call.fault == "repeated":
            late = self._random.uniform(0.0, self.settings.late_seconds_max)
            self._later(late, self._apply, call, 0.0)
        if call.fault == "reply lost":
            reply_seconds += self._random.uniform(0.0, self.settings.unknown_seconds_max)
            error = StoreOutcomeUnknown(call.key, "the connection broke before the answer")
        if error is not None:
            self._later(reply_seconds, self._fail, call, error)
        else:
            self._later(reply_seconds, self._succeed, call, outcome)

    def _succeed(self, call: _Call, outcome: object) -> None:
        if not call.future.done():
            call.future.set_result(outcome)

    def _fail(self, call: _Call, error: StoreError) -> None:
        if not call.future.done():
            call.future.set_exception(error)

    def _process_died(self, process: SimulatedProcess) -> None:
        """Requests that a dead process had sent still arrive, arrive late, or were never really
        sent."""
        for call in list(self._under_way[process]):
            handle = call.apply_handle
            if call.applied or handle is None or call.kind not in ("put", "delete"):
                continue
            chance = self._random.random()
            if chance < 0.3:
                handle.cancel()
                self.counts["died unsent"] += 1
            elif chance < 0.6:
                handle.cancel()
                late = self._random.uniform(0.0, self.settings.late_seconds_max)
                self._later(late, self._apply, call, 0.0)
                self.counts["applied after death"] += 1

    def _fault(self, process: SimulatedProcess, kind: Kind, key: str, conditional: bool) -> Fault:
        settings = self.settings
        writes = kind in ("put", "delete")
        chance = self._random.random()
        until, prefix = self._isolated.get(process, (0.0, ""))
        if self.loop.time() < until and key.startswith(prefix):
            return "request lost" if writes and chance < 0.5 else "refused"
        unavailable = self.loop.time() < self._unavailable_until and (
            writes or not self._unavailable_to_writes
        )
        if unavailable and chance < self._unavailable_share:
            return "refused"
        if kind == "put" and self._refuses_puts(self.loop.time()):
            return "refused"
        faults: list[tuple[float, Fault]] = [(settings.refused_probability, "refused")]
        if writes:
            faults += [
                (settings.reply_lost_probability, "reply lost"),
                (settings.request_lost_probability, "request lost"),
                (settings.delayed_probability, "delayed"),
            ]
        if conditional:
            faults.append((settings.repeated_probability, "repeated"))
        for probability, fault in faults:
            chance -= probability
            if chance < 0:
                return fault
        return "none"

    def _seconds(self, writes: bool) -> float:
        settings = self.settings
        if writes:
            low, high = settings.put_seconds_min, settings.put_seconds_max
        else:
            low, high = settings.get_seconds_min, settings.get_seconds_max
        if self._random.random() < settings.slow_probability:
            return self._random.uniform(high, settings.slow_seconds_max)
        return self._random.uniform(low, high)

    def page_entries(self) -> int:
        """How many entries the next page of a listing holds."""
        return self._random.randint(1, self.settings.page_entries_max)

    def _later(
        self, seconds: float, callback: Callable[..., object], *args: object
    ) -> asyncio.TimerHandle:
        return self.loop.call_system(seconds, callback, *args)

    def _note(self, line: str) -> None:
        self.loop.trace.record(self.loop.time(), f"store {line}")


class ProcessStore:
    """An ObjectStore of one process. Notices when a caller changes a buffer whose put is not
    finished."""

    def __init__(self, store: SimulatedStore, process: SimulatedProcess) -> None:
        self._store = store
        self._process = process
        self._memory = store.memory

    @property
    def url(self) -> str:
        return self._memory.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._store.request(
            self._process, "get", key, lambda: finish(self._memory.get(key, byte_range))
        )

    async def head(self, key: str) -> ObjectMeta:
        return await self._store.request(
            self._process, "head", key, lambda: finish(self._memory.head(key))
        )

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        body = bytes(joined(data))
        waiting = True

        def action() -> str:
            if waiting and self._process.alive and joined(data) != body:
                self._store.violations.append(f"the buffers of {key} changed during their put")
            return finish(self._memory.put(key, body, condition))

        try:
            return await self._store.request(
                self._process, "put", key, action, conditional=condition is not None
            )
        finally:
            waiting = False

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        while True:
            entries_max = self._store.page_entries()
            page = await self._store.request(
                self._process,
                "list",
                prefix,
                lambda: _page(self._memory, prefix, start_after, entries_max),  # noqa: B023
            )
            for entry in page:
                yield entry
            if len(page) < entries_max:
                return
            start_after = page[-1].key

    async def delete(self, *keys: str) -> None:
        await self._store.request(
            self._process, "delete", keys[0], lambda: finish(self._memory.delete(*keys))
        )

    async def close(self) -> None:
        """Do nothing: the store holds no resources."""


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, as MemoryStore's do not."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("the store in memory suspended")


def _page(memory: MemoryStore, prefix: str, start_after: str, entries_max: int) -> list[ObjectMeta]:
    async def first() -> list[ObjectMeta]:
        page: list[ObjectMeta] = []
        entries = memory.list(prefix, start_after)
        async for entry in entries:
            page.append(entry)
            if len(page) == entries_max:
                break
        await entries.aclose()  # type: ignore[attr-defined]
        return page

    return finish(first())
