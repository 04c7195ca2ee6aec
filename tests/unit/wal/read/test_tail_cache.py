"""The tail cache keeps the objects that were used last, within its budget."""

from __future__ import annotations

from tidelog.wal.read.tail_cache import TailCache


def test_parts_of_an_object_are_served_without_a_copy() -> None:
    cache = TailCache(100)
    cache.put("a", b"0123456789")
    found = cache.get("a", 2, 3)
    assert found is not None
    assert bytes(found) == b"234"
    assert found.readonly
    assert cache.get("a", 8, 3) is None
    assert cache.get("b", 0, 1) is None
    assert (cache.hits, cache.misses) == (1, 2)


def test_the_longest_unused_object_goes_first() -> None:
    cache = TailCache(30)
    for key in "abc":
        cache.put(key, bytes(10))
    cache.get("a", 0, 1)
    cache.put("d", bytes(10))
    assert [key for key in "abcd" if cache.get(key, 0, 10) is not None] == ["a", "c", "d"]
    assert cache.size_bytes == 30


def test_an_object_that_comes_again_counts_once() -> None:
    cache = TailCache(100)
    cache.put("a", bytes(10))
    cache.put("a", b"other")
    assert bytes(cache.get("a", 0, 5) or b"") == b"other"
    assert cache.get("a", 0, 6) is None
    assert cache.size_bytes == 5


def test_an_object_larger_than_the_cache_is_not_kept() -> None:
    cache = TailCache(10)
    cache.put("a", bytes(4))
    cache.put("b", bytes(11))
    assert "b" not in cache
    assert cache.get("a", 0, 4) is not None
    nothing = TailCache(0)
    nothing.put("a", b"1")
    assert nothing.get("a", 0, 1) is None


def test_a_view_stays_valid_when_its_object_is_dropped() -> None:
    cache = TailCache(10)
    cache.put("a", b"abc")
    view = cache.get("a", 0, 3)
    cache.drop("a")
    cache.drop("a")
    assert bytes(view or b"") == b"abc"
    assert (cache.get("a", 0, 3), cache.size_bytes) == (None, 0)
