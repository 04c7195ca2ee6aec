"""Log compaction compared with a model that reads records one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.unit.storage.keyed_log import Kept, KeyedLog
from tidelog.storage.clean import compaction, segment_rewriting
from tidelog.storage.clean.compaction import CompactionPolicy, Round, SegmentMergeLimits
from tidelog.storage.segment import segment_writer

WHOLE = 1000
KEYS = (None, b"", b"a", b"b", b"c", b"dd", b"e" * 40)
VALUES = (None, None, b"", b"x", b"y" * 30)


@dataclass(frozen=True)
class Step:
    """Some segments are appended, then the log is compacted at some moments, and perhaps merged."""

    segments: list[list[tuple[bytes | None, bytes | None, int]]]
    """Key, value, and how far the next offset is."""
    pause_ms: int
    rounds: int
    map_bytes: int
    target_bytes: int
    replacements_max: int
    merges: bool
    log_start_share: float


def steps_of(chance: random.Random) -> list[Step]:
    """A story. (Built from single choices, it would nearly always be short.)"""

    def segment() -> list[tuple[bytes | None, bytes | None, int]]:
        return [
            (chance.choice(KEYS), chance.choice(VALUES), chance.choice((1, 1, 2, 3)))
            for _ in range(chance.randint(0, 8))
        ]

    return [
        Step(
            segments=[segment() for _ in range(chance.randint(0, 3))],
            pause_ms=chance.choice((1, 30, 60)),
            rounds=chance.randint(0, 3),
            map_bytes=chance.choice((1, 200, 1 << 20, 1 << 20)),
            target_bytes=chance.choice((1, 3000, 6000, 1 << 20)),
            replacements_max=chance.choice((0, 1, 2, WHOLE, WHOLE, WHOLE)),
            merges=chance.random() < 0.3,
            log_start_share=chance.choice((0.0, 0.0, 0.0, 0.3)),
        )
        for _ in range(chance.randint(1, 8))
    ]


@dataclass
class Model:
    """The expected content of a table."""

    records: list[Kept] = field(default_factory=list)
    cleaned_ms: dict[int, int] = field(default_factory=dict)
    """When tombstones were compacted first, by their offsets."""

    def compact(self, found: Round) -> None:
        """Run a whole round."""
        latest = {record.key: record.offset for record in self.records if record.offset < found.end}
        self.records = [
            record
            for record in self.records
            if record.offset >= found.end
            or (
                record.key is not None
                and latest[record.key] == record.offset
                and not self._is_expired(record.offset, found)
            )
        ]
        self._note(found.end, found.now_ms)

    def resume(self, held: Sequence[Kept], cleaned_to: int, now_ms: int) -> None:
        """Go on from a round that was given up: the records that are left are unchanged."""
        assert set(held) <= set(self.records)
        assert [r.offset for r in held] == sorted({r.offset for r in held})
        self.records = list(held)
        self._note(cleaned_to, now_ms)

    def _note(self, end: int, now_ms: int) -> None:
        for record in self.records:
            if record.value is None and record.offset < end:
                self.cleaned_ms.setdefault(record.offset, now_ms)

    def _is_expired(self, offset: int, found: Round) -> bool:
        at = self.cleaned_ms.get(offset)
        return at is not None and found.now_ms - at >= found.delete_retention_ms


@contextmanager
def small_pieces() -> Iterator[None]:
    """Few rows in a row group, in a read, and in a look-up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "ROW_GROUP_ROWS", 3)
        patch.setattr(segment_rewriting, "READ_BYTES", 500)
        patch.setattr(segment_rewriting, "LOOKUP_BYTES", 200)
        patch.setattr(compaction, "MERGED_SEGMENTS_MIN", 2)
        yield


_few = settings(max_examples=max(10, settings.default.max_examples // 4), deadline=None)  # type: ignore[union-attr]


@_few
@given(st.integers(0, 2**32), st.sampled_from([0, 60, 120]))
def test_a_compacted_log_agrees_with_kafkas_rules(seed: int, delete_retention_ms: int) -> None:
    with small_pieces():
        asyncio.run(_compare(steps_of(random.Random(seed)), delete_retention_ms))


async def _compare(story: Sequence[Step], delete_retention_ms: int) -> None:
    policy = CompactionPolicy(0, 2**63 - 1, 0.0, delete_retention_ms)
    log, model = KeyedLog(), Model()
    now_ms, log_start = 1_000_000, 0
    for step in story:
        for segment in step.segments:
            offset, new = log.next_offset, []
            for key, value, distance in segment:
                new.append(Kept(offset, key, value))
                offset += distance
            await log.append(new, offset + 1)
            model.records += new
        log_start += int((log.next_offset - log_start) * step.log_start_share)
        model.records = _from(log_start, model.records)
        for _ in range(step.rounds):
            now_ms += step.pause_ms
            before = _from(log_start, await log.records())
            found = await log.compact(
                now_ms,
                policy,
                log_start,
                map_bytes=step.map_bytes,
                target_bytes=step.target_bytes,
                replacements_max=step.replacements_max,
            )
            after = _from(log_start, await log.records())
            assert _last_values(after) == _last_values(before)
            if found is None:
                assert after == before
            elif step.replacements_max == WHOLE:
                model.compact(found)
                assert after == model.records
                dirty = log.dirty(now_ms, policy, log_start)
                assert dirty is None or found.first_dirty < dirty.first_dirty
            else:
                model.resume(after, log.cleaned_to, now_ms)
        if step.merges:
            before = _from(log_start, await log.records())
            await log.merge(SegmentMergeLimits(step.target_bytes, 10**9), log_start)
            assert _from(log_start, await log.records()) == before
        for stored in log.segments:
            nulls = sum(record.value is None for record in await log.records_of(stored))
            assert stored.segment.tombstones == nulls


def _from(log_start: int, held: Sequence[Kept]) -> list[Kept]:
    """The records that a reader sees."""
    return [record for record in held if record.offset >= log_start]


def _last_values(held: Sequence[Kept]) -> dict[bytes, bytes]:
    """The last value of each key for a reader of the whole log."""
    found = {record.key: record.value for record in held if record.key is not None}
    return {key: value for key, value in found.items() if value is not None}
