"""The read cache keeps ranges of objects within its budget, and counts the unused ones."""

from __future__ import annotations

from tidelog.wal.read.read_cache import ReadCache, ReadMemory, StoredRange


def stored(key: str, start: int, size: int, *, is_ahead: bool = False) -> StoredRange:
    data = bytes((start + i) % 251 for i in range(size))
    return StoredRange(key, start, data, is_ahead=is_ahead)


def test_parts_of_a_range_are_served_without_a_copy() -> None:
    cache = ReadCache(ReadMemory(100))
    cache.put(stored("a", 10, 20))
    found = cache.get("a", 15, 5)
    assert found is not None
    assert bytes(found.view(15, 5)) == bytes(range(15, 20))
    assert found.view(15, 5).readonly
    for position, length in ((9, 2), (28, 3), (30, 1)):
        assert cache.get("a", position, length) is None
    assert cache.get("b", 10, 1) is None


def test_the_range_that_was_longest_unused_goes_first() -> None:
    cache = ReadCache(ReadMemory(30))
    for start in (0, 10, 20):
        cache.put(stored("a", start, 10))
    cache.get("a", 0, 1)
    cache.put(stored("b", 0, 10))
    assert cache.bounds("a") == [(0, 10), (20, 30)]
    assert cache.bounds("b") == [(0, 10)]
    assert cache.memory.size_bytes == 30


def test_no_range_lies_within_another() -> None:
    cache = ReadCache(ReadMemory(1000))
    cache.put(stored("a", 10, 10))
    cache.put(stored("a", 40, 10))
    cache.put(stored("a", 45, 20))
    cache.put(stored("a", 0, 60))
    assert cache.bounds("a") == [(0, 60), (45, 65)]
    cache.put(stored("a", 20, 5))
    assert cache.bounds("a") == [(0, 60), (45, 65)]
    assert cache.memory.size_bytes == 80
    assert cache.covers("a", 44, 1)
    assert cache.covers("a", 46, 19)
    assert not cache.covers("a", 44, 20)


def test_a_range_larger_than_the_cache_is_not_kept() -> None:
    cache = ReadCache(ReadMemory(10))
    cache.put(stored("a", 0, 11))
    assert not cache.covers("a", 0, 1)
    nothing = ReadCache(ReadMemory(0))
    nothing.put(stored("a", 0, 1))
    assert not nothing.covers("a", 0, 1)


def test_bytes_that_were_read_ahead_count_until_a_reader_asks() -> None:
    cache = ReadCache(ReadMemory(30))
    cache.put(stored("a", 0, 10, is_ahead=True))
    cache.put(stored("b", 0, 10, is_ahead=True))
    assert cache.memory.ahead_bytes == 20
    assert cache.covers("a", 0, 10)
    assert cache.memory.ahead_bytes == 20
    cache.get("a", 0, 5)
    assert cache.memory.ahead_bytes == 10
    cache.put(stored("c", 0, 20))
    assert (cache.memory.ahead_bytes, cache.memory.wasted_bytes) == (0, 10)


def test_a_view_stays_valid_when_its_range_is_dropped() -> None:
    cache = ReadCache(ReadMemory(10))
    cache.put(stored("a", 0, 10))
    found = cache.get("a", 0, 10)
    assert found is not None
    cache.put(stored("b", 0, 10))
    assert not cache.covers("a", 0, 1)
    assert bytes(found.view(3, 2)) == bytes((3, 4))
