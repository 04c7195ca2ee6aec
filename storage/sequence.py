"""Numbered objects, each created once: the primitive under metadata log, WAL and table log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as Pieces
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.errors import CorruptObject
from tidelog.storage.buffers import joined
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
)

NUMBER_DIGITS = 20
"""Zero-padded, so that key order is number order; the width that Delta Lake's log prescribes."""
WRITER_ID_BYTES = 16
READ_AHEAD_MAX = 64

_PAUSE_SECONDS_FIRST = 0.05
_PAUSE_SECONDS_MAX = 1.0


class AppendUndecided(StoreError):
    """The deadline passed and nobody can say whether the entry is ours. It may still become so.
    The writer must do nothing that depends on it and append nothing else: it ends itself."""


class SequenceGone(StoreError):
    """The number was taken and its object has been deleted since: the sequence went on without us.
    Not ours. The writer starts again from the newest snapshot or ends itself."""


@dataclass(frozen=True, slots=True)
class Mine:
    """The entry is ours and durable."""

    etag: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The entry is another writer's; ours is not and will never be stored."""

    data: Buffer


@dataclass(frozen=True, slots=True)
class SequenceEntry:
    """An entry that was read."""

    number: int
    data: Buffer
    etag: str


AppendResult: TypeAlias = Mine | Taken


class Sequence:
    """Objects `<prefix><n><suffix>`, n = 0, 1, 2, ..., created with put-if-absent (rules A1, A2).

    `identify(data)` gives the 16-byte writer id inside a body, or raises CorruptObject.

    Invariants, which rest on the store's put-if-absent alone and on no clock:

    S1. An entry's bytes never change. The first put that the store applies decides number n.
    S2. `Mine` is returned only after the store confirmed our put, or after n was read back and held
        our writer id and our bytes.
    S3. `Taken` is returned only after n was read back and held another writer id. By S1 none of our
        attempts, however late it arrives, can be applied as long as that object exists.
    S4. A lost answer is never believed either way: n is read back. Absent means that the same bytes
        are put again; nothing but these bytes is ever sent for n by one append.
    S5. A refused put (412) whose object is absent when read back was decided and deleted. It is
        neither success nor free to be taken again: `SequenceGone`.
    S6. While an attempt may still be applied unseen, an append ends only in Mine, Taken,
        SequenceGone, AppendUndecided, or CorruptObject (n was read back and holds neither our bytes
        nor a body that decodes), also when the store begins to refuse everything. StoreNotApplied
        and the store's other errors mean that nothing of ours is there.
    S7. A number deleted below a snapshot can be created again by a put that is later than the
        deletion (A2). So `deadline_seconds` must stay below half the grace of that deletion, and
        readers ignore what lies at or below the snapshot from which they start.

    Appends to different numbers may be in flight at once. One writer appends once to a number, with
    a writer id of its own. A cancelled append is undecided.
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
        """The object key of entry `number`."""
        if number < 0:
            raise ValueError(f"{self._prefix}: entry number {number} is negative")
        return f"{self._prefix}{number:0{NUMBER_DIGITS}d}{self._suffix}"

    def number(self, key: str) -> int | None:
        """The entry's number, or None for a key that is not one of this sequence's."""
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

        StoreNotApplied: certainly not appended within the deadline. AppendUndecided, SequenceGone:
        see there. `data` must not change until this returns; after AppendUndecided, never.
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
        """The entries from `start` upwards, up to the first number that is absent.

        Up to `read_ahead` entries are read at once and held in memory. The number quadruples from
        one: a short tail costs few reads of absent entries, a long one few round trips.
        An entry is yielded only when all below it were there; what lies behind an absent number is
        not looked at.
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
            # Set while the put is in flight: whatever interrupts it leaves the outcome open.
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
