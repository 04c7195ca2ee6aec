"""Runs a coordinator's machine over one internal partition that this broker leads.

The runtime appends a decision's records as one record batch and applies them at once, in the order
of the log. So later decisions build on them. It gives the answers when the records, and all earlier
appends, are durable: no client learns a state that could still be lost (rule H5). A decision lists
separately the answers that H2 allows earlier. Nothing is rolled back. If a slot is lost, the
incarnation ends, and its successor rebuilds the state from the log.

Loading: the runtime reads the newest snapshot and the log behind it, and answers requests with
COORDINATOR_LOAD_IN_PROGRESS. It retries a store that does not answer. The load begins again if a
newer snapshot lands meanwhile, so that the log no longer reaches back to the one before (rule F4).
Its writer may be this broker's earlier coordinator, where a move of the partition was refused. A
snapshot or a log that does not decode stops this coordinator alone; the log line names the object.
A load ends early if the partition leaves: its work would slow down the loads that count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog.clock import Clock
from tidelog.coordinator.decision import BatchProducer, Decision, Now, Token
from tidelog.coordinator.log_codec import Codec, decode_objects
from tidelog.coordinator.snapshots import Captured, SnapshottedLog, Snapshotter, StateSnapshots
from tidelog.errors import CorruptObject, TidelogError, UnsupportedFormat, without_frames
from tidelog.identifiers import Slot
from tidelog.named_tuples import new_tuple
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.buffers import Buffer
from tidelog.records.records import NewRecord
from tidelog.storage.object_store import StoreError
from tidelog.storage.superseded import retry_if_superseded
from tidelog.wal.log.producer_state import AppendRefused
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

LOAD_RETRY_SECONDS = 1.0

CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
CommandT = TypeVar("CommandT")
RecordT = TypeVar("RecordT")
ReplyT = TypeVar("ReplyT")
ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class Machine(Captured[RecordT], Protocol[CommandT_contra, RecordT, ReplyT_co]):
    """A pure coordinator. The runtime applies each decision's records before the next call."""

    def apply(self, record: RecordT) -> None:
        """Apply a record of the log."""
        ...

    def close(self) -> None:
        """The machine gets no more calls."""
        ...

    def loaded(self, now: Now) -> Decision[RecordT, ReplyT_co]:
        """The whole log was applied; requests may come."""
        ...

    def decide(
        self, command: CommandT_contra, token: Token, now: Now
    ) -> Decision[RecordT, ReplyT_co]:
        """The decision on a request."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When the next call of `tick` is due, by the monotonic clock; None for never."""
        ...

    def tick(self, now: Now) -> Decision[RecordT, ReplyT_co] | None:
        """The decision on one expired timer; None if no timer has expired."""
        ...


class InternalLog(SnapshottedLog, Protocol):
    """An internal partition that this broker leads; only its coordinator appends to it."""

    @property
    def is_empty(self) -> bool:
        """Whether the log never got an append."""
        ...

    @property
    def fault(self) -> CorruptObject | None:
        """Why the log can be neither read nor appended to."""
        ...

    def append(
        self, records: Sequence[NewRecord], now_ms: int, producer: BatchProducer | None
    ) -> Slot:
        """Append the records as one batch, of the producer's transaction if there is one.

        They count when the slot is durable. Raises AppendRefused if the partition refuses the
        producer; another TidelogError if the incarnation has ended. Then nothing was appended.
        """
        ...

    def is_durable(self, slot: Slot) -> bool:
        """Whether the slot is durable, and so all slots before it."""
        ...

    def tell(self, slot: Slot, told: Callable[[TidelogError | None], None]) -> None:
        """Call `told` later, when the slot is durable, or with the error that leaves that unknown.

        It must not fail.
        """
        ...

    def read(self, offset: int) -> AsyncGenerator[Sequence[tuple[str, Buffer]], None]:
        """The durable log, from the object that holds an offset on.

        Yields some objects at a time: the key of each, and its record batches. Raises
        CorruptObject, also if the log does not reach back to the offset, or StoreError.
        """
        ...


class CoordinatorRefused(TidelogError):
    """The coordinator cannot serve now; `code` is Kafka's error.

    If the request was accepted before, its effect is unknown: clients repeat it.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class RuntimeState(Enum):
    """The coordinator's state, with the error code for requests."""

    LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    READY = ErrorCode.NONE
    CORRUPT = ErrorCode.COORDINATOR_NOT_AVAILABLE
    STOPPED = ErrorCode.NOT_COORDINATOR


class _Loaded(NamedTuple):
    """The size of a load."""

    rows: int
    """Of the snapshot."""
    replayed: int
    """Records of the log behind the snapshot."""


class CoordinatorRuntime(Generic[CommandT, RecordT, ReplyT]):
    """One coordinator of one internal partition. `run` is its task."""

    def __init__(
        self,
        name: str,
        log: InternalLog,
        new_machine: Callable[[], Machine[CommandT, RecordT, ReplyT]],
        codec: Codec[RecordT],
        clock: Clock,
        offload: Offload,
        may_serve: Callable[[], bool],
        snapshots: StateSnapshots[RecordT],
        snapshotter: Snapshotter,
        on_carried_out: Callable[[Decision[RecordT, ReplyT]], None] | None = None,
    ) -> None:
        """`name` is the partition's name, for messages.

        `may_serve`: whether the lease is fresh enough to answer state that a successor may have
        changed (rule B3). `on_carried_out` gets each decision once its records are appended and
        applied, right behind them in the WAL.
        """
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._new_machine = new_machine
        self._machine = new_machine()
        self._codec = codec
        self._clock = clock
        self._offload = offload
        self._may_serve = may_serve
        self._snapshots = snapshots
        self._snapshotter = snapshotter
        self._snapshotting = asyncio.Lock()
        self._on_carried_out = on_carried_out
        self._state = RuntimeState.LOADING
        self._fault: TidelogError | None = None
        self._waiting: dict[Token, asyncio.Future[ReplyT]] = {}
        self._next_token = 0
        self._newest: Slot | None = None
        """The slot of the last append."""
        self._sleeps_until_ms: int | None = None
        self._wake = asyncio.Event()
        if log.is_empty:
            self._begin()

    @property
    def state(self) -> RuntimeState:
        return self._state

    @property
    def fault(self) -> TidelogError | None:
        """Why it can never serve, in the state CORRUPT."""
        return self._fault

    @property
    def loaded_machine(self) -> Machine[CommandT, RecordT, ReplyT] | None:
        """The machine with the whole state, only to look at; None in all states but READY."""
        return self._machine if self._state is RuntimeState.READY else None

    def submit(self, command: CommandT) -> asyncio.Future[ReplyT]:
        """Decide a command at once, in the order of the calls.

        The reply comes when the state behind it is durable. Raises, or fails with,
        CoordinatorRefused.
        """
        if self._state is not RuntimeState.READY:
            raise self._refusal()
        token = Token(self._next_token)
        self._next_token += 1
        future: asyncio.Future[ReplyT] = self._loop.create_future()
        self._waiting[token] = future
        try:
            self.carry_out(self._machine.decide(command, token, self._now()))
        except AppendRefused as error:
            refusal = CoordinatorRefused(ErrorCode(error.error_code), str(error))
            self._refuse_when_durable(token, refusal)
        except TidelogError as error:
            # The WAL has ended, and with it this incarnation.
            self._waiting.pop(token, None)
            raise CoordinatorRefused(ErrorCode.NOT_COORDINATOR, str(error)) from error
        return future

    def transaction_ended(self, producer_id: int, slot: Slot, *, is_commit: bool) -> None:
        """Apply the marker of a producer's transaction, which lies in that slot of the log.

        Only while READY: a load might miss appends made during it.
        """
        assert self._state is RuntimeState.READY
        record = self._codec.ended(producer_id, is_commit)
        if record is not None:
            self._machine.apply(record)
            self._newest = slot
            self._request_snapshot_when_due()

    def stop(self) -> None:
        """Refuse all waiting requests: the partition has left, or the broker ends."""
        self._state = RuntimeState.STOPPED
        self._machine.close()
        self._fail(list(self._waiting), self._refusal())
        self._wake.set()

    async def run(self) -> None:
        """Load, then serve timers until stopped. Raises TidelogError if the incarnation has
        ended."""
        try:
            if self._state is RuntimeState.LOADING:
                await self._load()
            while self._state is RuntimeState.READY:
                decision = self._machine.tick(self._now())
                if decision is not None:
                    self.carry_out(decision)
                else:
                    await self._sleep()
        finally:
            # `stop` may have come during the load.
            self._machine.close()

    # Loading.

    async def _load(self) -> None:
        """Restore the newest snapshot and replay the log behind it."""
        started = self._clock.monotonic()
        while self._state is RuntimeState.LOADING:
            try:
                loaded = await retry_if_superseded(self._replay)
            except StoreError as error:
                logger.warning(
                    "a coordinator cannot read its log",
                    extra={"partition": self.name, "key": error.key, "why": str(error)},
                )
                await self._clock.sleep(LOAD_RETRY_SECONDS)
            except (CorruptObject, UnsupportedFormat) as error:
                if self._state is not RuntimeState.LOADING:
                    # The next owner may have written a snapshot that lies behind this log's end.
                    return
                key = error.key if isinstance(error, CorruptObject) else ""
                logger.error(
                    "a coordinator's state cannot be read; it answers COORDINATOR_NOT_AVAILABLE",
                    extra={"partition": self.name, "key": key, "why": str(error)},
                )
                self._fault = without_frames(error)
                self._state = RuntimeState.CORRUPT
            else:
                if self._state is not RuntimeState.LOADING:
                    return
                logger.info(
                    "a coordinator has loaded its state",
                    extra={
                        "partition": self.name,
                        "records": loaded.rows + loaded.replayed,
                        "replayed": loaded.replayed,
                        "seconds": self._clock.monotonic() - started,
                    },
                )
                self._begin()
                if self._snapshots.schedule.is_due_after_load(self._log.next_offset):
                    self._snapshotter.request(self.snapshot)

    async def _replay(self) -> _Loaded:
        """Replay the newest snapshot and the log behind it, unless stopped meanwhile."""
        self._machine.close()
        self._machine = self._new_machine()
        if self._log.fault is not None:
            raise self._log.fault
        rows = replayed = offset = 0
        restored = await self._snapshots.restore(self._machine.apply)
        if restored is not None:
            rows, offset = restored.rows, restored.next_offset
            if offset > self._log.next_offset:
                raise CorruptObject(
                    restored.key, f"the log of {self.name} ends at offset {self._log.next_offset}"
                )
            self._log.superseded_below(offset)
        async with aclosing(self._log.read(offset)) as groups:
            async for objects in groups:
                records = await self._offload.run(decode_objects, objects, offset, self._codec)
                if self._state is not RuntimeState.LOADING:
                    break
                for record in records:
                    self._machine.apply(record)
                replayed += len(records)
        return _Loaded(rows, replayed)

    def _begin(self) -> None:
        self._state = RuntimeState.READY
        self.carry_out(self._machine.loaded(self._now()))
        self._request_snapshot_when_due()

    # Snapshots.

    async def snapshot(self) -> None:
        """Write a snapshot of the present state.

        Raises StoreError (the caller may retry), and another TidelogError if the incarnation has
        ended.
        """
        async with self._snapshotting:
            # Behind the lock: a coordinator that has stopped meanwhile does not know what its
            # successor, for which the partition stayed, has appended to the same log.
            if self._state is RuntimeState.READY:
                await self._snapshots.write(self._machine, self._log)

    def is_behind_its_snapshot(self, records: int) -> bool:
        """Whether at least this many records of the log are in no snapshot."""
        return self._snapshots.schedule.is_behind(self._log.next_offset, records)

    def _request_snapshot_when_due(self) -> None:
        if self._snapshots.schedule.is_due(self._log.next_offset):
            self._snapshotter.request(self.snapshot)

    # Decisions.

    def carry_out(self, decision: Decision[RecordT, ReplyT]) -> None:
        """Append and apply the decision's records, and answer when that is due."""
        if decision.records:
            now_ms = self._clock.time_ms()
            encoded = map(self._codec.encode, decision.records)
            records = [NewRecord(value, key, timestamp=now_ms) for key, value in encoded]
            self._newest = self._log.append(records, now_ms, decision.producer)
            for record in decision.records:
                self._machine.apply(record)
            self._request_snapshot_when_due()
        if decision.replies_when_appended:
            self._answer(decision.replies_when_appended)
        if decision.replies:
            self._release(decision.replies)
        if self._on_carried_out is not None:
            self._on_carried_out(decision)
        deadline_ms = self._machine.next_deadline_ms()
        sleeps_until_ms = self._sleeps_until_ms
        if deadline_ms is not None and (sleeps_until_ms is None or deadline_ms < sleeps_until_ms):
            self._wake.set()

    def _release(self, replies: Sequence[tuple[Token, ReplyT]]) -> None:
        """Answer when all appends so far are durable."""
        if self._newest is None or self._log.is_durable(self._newest):
            self._answer(replies)
            return

        def told(lost: TidelogError | None) -> None:
            if lost is None:
                self._answer(replies)
            else:
                refusal = CoordinatorRefused(ErrorCode.NOT_COORDINATOR, str(lost))
                self._fail([token for token, _ in replies], refusal)

        self._log.tell(self._newest, told)

    def _refuse_when_durable(self, token: Token, refusal: CoordinatorRefused) -> None:
        """Give a refusal by the log when all appends so far are durable.

        It is a read of the log: the refusal may rest on appends that could still be lost (H5), or
        on a state that a successor has changed (B3). To a producer it may be final.
        """

        def told(lost: TidelogError | None) -> None:
            if lost is not None:
                self._fail([token], CoordinatorRefused(ErrorCode.NOT_COORDINATOR, str(lost)))
            else:
                self._fail([token], refusal if self._may_serve() else _stale())

        if self._newest is None:
            told(None)
        else:
            self._log.tell(self._newest, told)

    def _answer(self, replies: Sequence[tuple[Token, ReplyT]]) -> None:
        if not self._may_serve():
            self._fail([token for token, _ in replies], _stale())
            return
        for token, reply in replies:
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_result(reply)

    def _fail(self, tokens: Sequence[Token], refusal: CoordinatorRefused) -> None:
        for token in tokens:
            future = self._waiting.pop(token, None)
            if future is not None and not future.done():
                future.set_exception(refusal)
                # The caller may have gone: retrieve the error, so that the event loop logs none.
                future.exception()

    def _refusal(self) -> CoordinatorRefused:
        why = "" if self._fault is None else f": {self._fault}"
        return CoordinatorRefused(
            self._state.value, f"the coordinator of {self.name} is {self._state.name.lower()}{why}"
        )

    # Time.

    def _now(self) -> Now:
        return new_tuple(Now, (int(self._clock.monotonic() * 1000), self._clock.time_ms()))

    async def _sleep(self) -> None:
        deadline_ms = self._sleeps_until_ms = self._machine.next_deadline_ms()
        seconds = None
        if deadline_ms is not None:
            seconds = max(0.0, deadline_ms / 1000 - self._clock.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()


def _stale() -> CoordinatorRefused:
    return CoordinatorRefused(ErrorCode.NOT_COORDINATOR, "the broker's lease is not fresh")
