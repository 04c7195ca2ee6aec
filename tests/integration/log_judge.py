"""Compares the records that consumers read with those that producers got acknowledged. Records may
lawfully vanish: aborted ones, those below the log start, and those superseded before a compaction.
Pure.

A reader walks through a partition. Offsets that it did not get are gaps, noted with the time at
which the next offset came. In the end, `Judge` decides for each record in a gap whether it may have
been gone at that time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(slots=True)
class Fate:
    """The outcome of a record's transaction."""

    is_committed: bool | None = None
    """None while the transaction is not decided."""


COMMITTED = Fate(True)
"""The fate of a record outside of transactions."""


class Sent(NamedTuple):
    """A record as its producer sent it."""

    key: bytes
    value: bytes | None
    sent_at: float
    """The time of sending, before which no reader can have the record."""
    fate: Fate


class Ledger:
    """The answers to producers: the offset of each record."""

    def __init__(self) -> None:
        self.logs: dict[Place, dict[int, Sent]] = {}

    def note(self, place: Place, offset: int, sent: Sent) -> None:
        """Note an acknowledged record. Only one writer may call this at a time."""
        known = self.logs.setdefault(place, {}).setdefault(offset, sent)
        assert known is sent, f"{place} {offset} was given to two records"

    def find(self, place: Place, offset: int) -> Sent | None:
        """The record that was acknowledged at an offset."""
        return self.logs.get(place, {}).get(offset)

    @property
    def records(self) -> int:
        return sum(len(log) for log in self.logs.values())


class Gap(NamedTuple):
    """Offsets [first, following) that a reader did not get, and the time at which it knew that."""

    first: int
    following: int
    seen_at: float


class Found(NamedTuple):
    """A record that was read before its producer learned its offset or the outcome of its
    transaction."""

    offset: int
    key: bytes
    value: bytes | None


class Violation(AssertionError):
    """A reader saw a forbidden record, or missed a required one."""


@dataclass(slots=True)
class Walk:
    """One reader's way through one partition."""

    place: Place
    ledger: Ledger
    is_committed_only: bool
    next: int = 0
    records: int = 0
    gaps: list[Gap] = field(default_factory=list)
    unproved: list[Found] = field(default_factory=list)

    def take(self, offset: int, key: bytes, value: bytes | None, now: float) -> None:
        """The reader got a record."""
        if offset < self.next:
            raise Violation(f"{self.place}: {offset} came after {self.next - 1}")
        self._pass(offset, now)
        self.next = offset + 1
        self.records += 1
        found = Found(offset, key, value)
        if not self._is_proved(found):
            self.unproved.append(found)

    def reach(self, offset: int, now: float) -> None:
        """The reader learned that it is at the end, at this offset."""
        if offset > self.next:
            self._pass(offset, now)
            self.next = offset

    def _pass(self, offset: int, now: float) -> None:
        if offset > self.next:
            self.gaps.append(Gap(self.next, offset, now))

    def _is_proved(self, found: Found) -> bool:
        """Whether the record is the sent one and may be seen. False if producers do not know that
        yet."""
        sent = self.ledger.find(self.place, found.offset)
        if sent is None:
            return False
        if (sent.key, sent.value) != (found.key, found.value):
            raise Violation(
                f"{self.place} {found.offset}: {found} differs from the sent record: {sent}"
            )
        if self.is_committed_only and sent.fate.is_committed is False:
            raise Violation(f"{self.place} {found.offset}: an aborted record was read: {found}")
        return not self.is_committed_only or sent.fate.is_committed is True

    def settle(self) -> None:
        """Check the records that could not be proved before. Call this when producers know all
        outcomes."""
        for found in self.unproved:
            if not self._is_proved(found):
                raise Violation(f"{self.place} {found.offset}: {found} was never sent")
        self.unproved.clear()


class LogStarts:
    """Log starts at several times. A log start never goes back."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._starts: list[dict[Place, int]] = []

    def note(self, asked_at: float, starts: dict[Place, int]) -> None:
        """Note the broker's answer to a question that was asked at this time."""
        for before, after in pairwise([*self._starts[-1:], starts]):
            for place, start in after.items():
                if start < before.get(place, 0):
                    raise Violation(f"{place}: the log start went back to {start}")
        self._times.append(asked_at)
        self._starts.append(starts)

    def by(self, place: Place, now: float) -> int:
        """The log start at this time or a little later: the answer to the first question after
        it."""
        number = bisect_left(self._times, now)
        if number == len(self._times):
            raise ValueError(f"no question for log starts since {now}")
        return self._starts[number].get(place, 0)


@dataclass(frozen=True, slots=True)
class Policy:
    """The ways in which a topic may lose records."""

    is_deleted: bool
    """Records below the log start are gone."""
    tombstone_seconds: float | None
    """`delete.retention.ms`, or None if the topic is not compacted."""


class Judge:
    """Judges walks when all producers know all outcomes."""

    def __init__(self, ledger: Ledger, starts: LogStarts, policies: dict[str, Policy]) -> None:
        self._ledger = ledger
        self._starts = starts
        self._policies = policies
        self._offsets = {place: sorted(log) for place, log in ledger.logs.items()}
        self._keys = {place: dict(self._by_key(place)) for place in ledger.logs}

    def judge(self, walk: Walk) -> None:
        """Raise Violation for gaps that records may not have."""
        walk.settle()
        for gap in walk.gaps:
            offsets = self._offsets.get(walk.place, [])
            first, following = (bisect_left(offsets, each) for each in gap[:2])
            for offset in offsets[first:following]:
                why = self._why_it_may_be_gone(walk.place, offset, gap.seen_at)
                if why is None:
                    sent = self._ledger.logs[walk.place][offset]
                    raise Violation(f"{walk.place}: {offset} was not read: {sent}, in {gap}")

    def newest(self, place: Place) -> dict[bytes, int]:
        """The offset of the newest committed record of each key."""
        return {key: offsets[-1] for key, offsets in self._keys[place].items()}

    def _by_key(self, place: Place) -> Iterator[tuple[bytes, list[int]]]:
        log, keys = self._ledger.logs[place], dict[bytes, list[int]]()
        for offset in self._offsets[place]:
            if log[offset].fate.is_committed:
                keys.setdefault(log[offset].key, []).append(offset)
        yield from keys.items()

    def _why_it_may_be_gone(self, place: Place, offset: int, now: float) -> str | None:
        log, policy = self._ledger.logs[place], self._policies[place.topic]
        sent = log[offset]
        if sent.fate.is_committed is False:
            # Readers without isolation see the record until it is rolled.
            return "it was aborted"
        if policy.is_deleted and offset < self._starts.by(place, now):
            return "the log begins behind it"
        if policy.tombstone_seconds is None:
            return None
        if sent.value is None and sent.sent_at + policy.tombstone_seconds < now:
            return "its tombstone has served"
        same = self._keys[place][sent.key]
        later = same[bisect_left(same, offset + 1) :]
        if any(log[each].sent_at < now for each in later):
            return "a later record has its key"
        return None
