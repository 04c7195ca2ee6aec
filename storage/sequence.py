"""Numbered objects, each created once: the base of the metadata log, the WALs and table logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as Pieces
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    IfAbsent,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoredObject,
    StoreError,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
    failure_behind,
    joined,
)

NUMBER_DIGITS = 20
"""Zero-padded, so that key order is number order. Delta Lake's log prescribes this width."""
WRITER_ID_BYTES = 16
READ_AHEAD_MAX = 64

_PAUSE_SECONDS_FIRST = 0.05
_PAUSE_SECONDS_MAX = 1.0


class AppendUndecided(StoreError):
    """The deadline passed before the append learned its outcome. The entry may still be stored.

    The writer must not act on the entry and must not append again: it ends itself.
    """


class SequenceGone(StoreError):
    """The number was taken and its object has since been deleted, so the sequence has moved on.

    The entry is not this writer's. The writer restarts from the newest snapshot or ends itself.
    """


@dataclass(frozen=True, slots=True)
class Mine:
    """The entry is this writer's and durable."""

    etag: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The entry is another writer's; this writer's entry is not and will never be stored."""

    data: Buffer


@dataclass(frozen=True, slots=True)
class SequenceEntry:
    number: int
    data: Buffer
    etag: str


AppendResult: TypeAlias = Mine | Taken


class Sequence:
    """Objects `<prefix><n><suffix>`, n = 0, 1, 2, ..., created with put-if-absent (rules A1, A2).

    `identify(data)` gives the 16-byte writer id inside a body, or raises CorruptObject.

    The invariants rest on the store's put-if-absent alone and on no clock:

    - S1. An entry's bytes never change. The first put that the store applies decides number n.
    - S2. `append` returns `Mine` only after the store confirmed its put, or after it read n back
      and found its writer id and bytes.
    - S3. `append` returns `Taken` only after it read n back and found another writer id. By S1 the
      store applies none of its attempts, however late, while that object exists.
    - S4. A lost response proves nothing: `append` reads n back. If n is absent, it puts the same
      bytes again. One append never sends other bytes for n.
    - S5. If a put is refused (412) and a read finds n absent, n was decided and deleted. The append
      raises `SequenceGone`: n is neither this writer's nor free.
    - S6. While an attempt may still be applied, an append ends only in Mine, Taken, SequenceGone,
      AppendUndecided or CorruptObject. This holds even if the store begins to refuse every request.
      CorruptObject means that n holds neither these bytes nor a body that decodes. After
      StoreNotApplied and the store's other errors, n holds nothing from this append.
    - S7. A put can create a number again after its deletion below a snapshot (A2). So
      `deadline_seconds` must stay below half the grace of that deletion. Readers ignore entries at
      or below the snapshot from which they start.

    Appends to different numbers may be in flight at once. A writer appends once to a number, with a
    new writer id. A cancelled append is undecided.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        prefix: str,
        suffix: str,
        identify: Callable[[Buffer], bytes],
    ) -> None:
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._suffix = suffix
        self._identify = identify

    @property
    def prefix(self) -> str:
        """The beginning of every entry's key."""
        return self._prefix

    def key(self, number: int) -> str:
        if number < 0:
            raise ValueError(f"{self._prefix}: entry number {number} is negative")
        return f"{self._prefix}{number:0{NUMBER_DIGITS}d}{self._suffix}"

    def number(self, key: str) -> int | None:
        """The entry's number, or None for a key outside this sequence."""
        digits = key.removeprefix(self._prefix).removesuffix(self._suffix)
        if len(digits) != NUMBER_DIGITS or not (digits.isascii() and digits.isdigit()):
            return None
        return int(digits) if key == self.key(int(digits)) else None

    async def append(
        self,
        number: int,
        data: Buffer | Pieces[Buffer],
        writer_id: bytes,
        deadline_seconds: float,
    ) -> AppendResult:
        """Try to make `data`, which holds `writer_id`, entry `number`.

        StoreNotApplied: the entry was not appended within the deadline. AppendUndecided,
        SequenceGone: see there. `data` must not change until this returns; after AppendUndecided,
        never.
        """
        if len(writer_id) != WRITER_ID_BYTES:
            raise ValueError(f"a writer id has {WRITER_ID_BYTES} bytes, not {len(writer_id)}")
        attempt = AppendAttempt(self, self.key(number), data, writer_id)
        try:
            async with asyncio.timeout(deadline_seconds):
                return await attempt.run()
        except TimeoutError as error:
            last: BaseException | None = failure_behind(error) or attempt.last_error
            why = f"no answer within {deadline_seconds:g} s"
            if isinstance(last, StoreError):
                why = f"{last.why}; it was tried for {deadline_seconds:g} s"
        except SequenceGone:
            raise
        except StoreError as error:
            if not attempt.ambiguous:
                raise
            why = f"the outcome could not be read back: {error}"
            last = error
        if attempt.ambiguous:
            raise AppendUndecided(attempt.key, f"{why}; the entry may or may not be ours") from last
        raise StoreNotApplied(attempt.key, f"{why}; the entry was not appended") from last

    async def read(self, number: int) -> StoredObject:
        """Entry `number`, whole. ObjectNotFound if absent."""
        return await self._store.get(self.key(number))

    async def read_range(self, number: int, byte_range: ByteRange | Suffix) -> StoredObject:
        """A range of entry `number`. ObjectNotFound if absent."""
        return await self._store.get(self.key(number), byte_range)

    async def iterate(
        self, start: int, read_ahead: int = READ_AHEAD_MAX
    ) -> AsyncIterator[SequenceEntry]:
        """The entries from `start` upwards, up to the first absent number.

        Up to `read_ahead` entries are read at once and held in memory. The number quadruples from
        one: a short tail costs few reads of absent entries, a long tail few round trips. An entry
        is yielded only if all entries below it exist. Entries above an absent number are ignored.
        """
        if not 1 <= read_ahead <= READ_AHEAD_MAX:
            raise ValueError(f"read_ahead is {read_ahead}, not in [1, {READ_AHEAD_MAX}]")
        number, width = start, 1
        while True:
            for stored in await self._read_many(number, width):
                if stored is None:
                    return
                yield SequenceEntry(number=number, data=stored.data, etag=stored.etag)
                number += 1
            width = min(4 * width, read_ahead)

    async def _read_many(self, start: int, count: int) -> list[StoredObject | None]:
        if count == 1:
            return [await self._read_if_present(start)]
        return await all_results(
            self._read_if_present(number) for number in range(start, start + count)
        )

    async def _read_if_present(self, number: int) -> StoredObject | None:
        try:
            return await self.read(number)
        except ObjectNotFound:
            return None


class AppendAttempt:
    """One append: puts, and reads that decide a put whose outcome is open.

    `ambiguous`: a put may have been applied, or may yet be.
    """

    def __init__(
        self, sequence: Sequence, key: str, data: Buffer | Pieces[Buffer], writer_id: bytes
    ) -> None:
        self.key = key
        self.ambiguous = False
        self.last_error: StoreError | None = None
        self._sequence = sequence
        self._data = data
        self._writer_id = writer_id
        self._pause_seconds = _PAUSE_SECONDS_FIRST

    async def run(self) -> AppendResult:
        store = self._sequence._store
        while True:
            settled_before = not self.ambiguous
            # Set while the put is in flight: an interruption leaves the outcome open.
            self.ambiguous = True
            try:
                return Mine(await store.put(self.key, self._data, IfAbsent()))
            except PreconditionFailed:
                return await self.read_back_refused()
            except StoreOutcomeUnknown as error:
                self.last_error = error
                found = await self.read_back()
                if found is not None:
                    return found
            except StoreNotApplied as error:
                self.last_error = error
                self.ambiguous = not settled_before
            except StoreError:
                self.ambiguous = not settled_before
                raise
            await self._pause()

    async def read_back_refused(self) -> AppendResult:
        """Decide a put that the store refused because the object exists (S3, S5)."""
        found = await self.read_back()
        if found is None:
            raise SequenceGone(self.key, "the number was taken and its object has been deleted")
        return found

    async def read_back(self) -> AppendResult | None:
        """Read the entry and decide by its writer id; None if it is absent (S4)."""
        while True:
            try:
                stored = await self._sequence._store.get(self.key)
            except ObjectNotFound:
                return None
            except (StoreNotApplied, StoreOutcomeUnknown) as error:
                self.last_error = error
                await self._pause()
                continue
            return self._decide(stored)

    def _decide(self, stored: StoredObject) -> AppendResult:
        writer_id = self._sequence._identify(stored.data)
        if writer_id != self._writer_id:
            return Taken(stored.data)
        if stored.data != joined(self._data):
            raise CorruptObject(self.key, "it holds this writer's id but other bytes")
        return Mine(stored.etag)

    async def _pause(self) -> None:
        await self._sequence._clock.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS_MAX)
