"""The promises of every ObjectStore, as tests. A subclass defines how a fresh store is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tidelog.storage.object_store import (
    DELETED_AT_ONCE_MAX,
    ByteRange,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreNotApplied,
    Suffix,
)

T = TypeVar("T")
MakeStore = Callable[[], ObjectStore]
RELATIVE_KEYS = ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/./b"]
INVALID_KEYS = [
    *RELATIVE_KEYS,
    *("a\x00b", "a\nb", "a\\b", ".tidelog/a"),
    *("x" * 256, "long/" * 205 + "x"),
]
UNUSUAL_KEYS = ["a b", "ä/ö", "p=1/x", "a%20b", "a+b", "a?b#c", "~", "-._", "a:b,@(c)", "日本"]


def run(make_store: MakeStore, story: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """Run a story with a fresh store."""

    async def main() -> T:
        store = make_store()
        try:
            return await story(store)
        finally:
            await store.close()

    return asyncio.run(main())


async def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key async for meta in store.list(prefix, start_after)]


class ObjectStoreContract:
    """Subclasses define the fixture `make_store`: each store that it makes is a fresh one."""

    pages_entries = 1005
    """The number of objects that need more than one page of a listing."""
    lists_siblings_in_order = True
    """Whether `a-b` comes before `a/b`: SeaweedFS lists the directory `a` first."""
    starts_after_directories = True
    """Whether `start_after` may be a directory's name: not in SeaweedFS."""
    has_no_directories = True
    """Whether `a` and `a/b` can both be objects. They cannot if directories are files."""

    def test_an_object_is_read_back_with_size_and_version(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            etag = await store.put("dir/object", b"hello")
            stored = await store.get("dir/object")
            assert (bytes(stored.data), stored.size, stored.etag) == (b"hello", 5, etag)
            meta = await store.head("dir/object")
            assert (meta.key, meta.size, meta.etag) == ("dir/object", 5, etag)
            (listed,) = [listed async for listed in store.list()]
            assert (listed.key, listed.size, listed.etag) == ("dir/object", 5, etag)
            assert meta.modified_ms > 0
            assert abs(listed.modified_ms - meta.modified_ms) < 1000

        run(make_store, story)

    @pytest.mark.parametrize("count", [0, 1, 3, 1500])
    def test_pieces_are_stored_joined(self, make_store: MakeStore, count: int) -> None:
        kinds = (bytes, bytearray, memoryview)
        pieces = [kinds[i % 3](bytes([i % 256]) * (i % 7)) for i in range(count)]

        async def story(store: ObjectStore) -> None:
            await store.put("joined", pieces)
            assert bytes((await store.get("joined")).data) == b"".join(map(bytes, pieces))

        run(make_store, story)

    def test_an_object_does_not_change_with_the_buffers_of_its_put(
        self, make_store: MakeStore
    ) -> None:
        changed, seen = bytearray(b"first"), bytearray(b"second")
        pieces = [changed, memoryview(seen).toreadonly(), memoryview(b"third")]

        async def story(store: ObjectStore) -> None:
            await store.put("kept", pieces)
            changed[:], seen[:] = b"FIRST", b"SECOND"
            assert (await store.get("kept")).data == b"firstsecondthird"

        run(make_store, story)

    def test_a_large_object_comes_back_whole(self, make_store: MakeStore) -> None:
        body = bytes(range(256)) * 4096 * 9

        async def story(store: ObjectStore) -> None:
            await store.put("large", memoryview(body), IfAbsent())
            assert (await store.get("large")).data == body
            middle = await store.get("large", ByteRange(4_000_001, 1_000_000))
            assert middle.data == body[4_000_001:5_000_001]
            assert middle.size == len(body)

        run(make_store, story)

    @pytest.mark.parametrize(
        ("byte_range", "expected"),
        [
            (ByteRange(0, 3), b"012"),
            (ByteRange(3, 4), b"3456"),
            (ByteRange(7, 100), b"789"),
            (ByteRange(9, 1), b"9"),
            (ByteRange(10, 5), b""),
            (ByteRange(50, 5), b""),
            (ByteRange(4, 0), b""),
            (Suffix(4), b"6789"),
            (Suffix(10), b"0123456789"),
            (Suffix(1000), b"0123456789"),
            (Suffix(0), b""),
        ],
        ids=str,
    )
    def test_a_range_is_cut_to_the_object(
        self, make_store: MakeStore, byte_range: ByteRange | Suffix, expected: bytes
    ) -> None:
        async def story(store: ObjectStore) -> None:
            etag = await store.put("digits", b"0123456789")
            stored = await store.get("digits", byte_range)
            assert (bytes(stored.data), stored.size, stored.etag) == (expected, 10, etag)

        run(make_store, story)

    @pytest.mark.parametrize("byte_range", [None, ByteRange(0, 5), ByteRange(5, 1), Suffix(8)])
    def test_an_empty_object_has_empty_ranges(
        self, make_store: MakeStore, byte_range: ByteRange | Suffix | None
    ) -> None:
        async def story(store: ObjectStore) -> None:
            await store.put("empty", b"")
            stored = await store.get("empty", byte_range)
            assert (bytes(stored.data), stored.size) == (b"", 0)

        run(make_store, story)

    def test_an_absent_object_is_named(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            await store.put("dir/other", b"x")
            for key in ("nothing", "dir", "dir/other/below"):
                with pytest.raises(ObjectNotFound) as caught:
                    await store.get(key)
                assert caught.value.key == key
                with pytest.raises(ObjectNotFound):
                    await store.get(key, Suffix(3))
                with pytest.raises(ObjectNotFound):
                    await store.head(key)

        run(make_store, story)

    def test_a_key_is_created_once(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            etag = await store.put("log/0", b"first", IfAbsent())
            with pytest.raises(PreconditionFailed) as caught:
                await store.put("log/0", b"second", IfAbsent())
            assert caught.value.key == "log/0"
            stored = await store.get("log/0")
            assert (bytes(stored.data), stored.etag) == (b"first", etag)
            await store.delete("log/0")
            await store.put("log/0", b"second", IfAbsent())
            assert (await store.get("log/0")).data == b"second"

        run(make_store, story)

    def test_only_the_current_version_is_replaced(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            with pytest.raises(PreconditionFailed):
                await store.put("lease", b"1", IfMatch('"0123456789abcdef0123456789abcdef"'))
            first = await store.put("lease", b"1")
            second = await store.put("lease", b"2", IfMatch(first))
            assert first != second
            with pytest.raises(PreconditionFailed):
                await store.put("lease", b"3", IfMatch(first))
            assert (await store.get("lease")).data == b"2"
            listed = [meta.etag async for meta in store.list("lease")]
            assert listed == [(await store.get("lease")).etag] == [second]
            await store.delete("lease")
            with pytest.raises(PreconditionFailed):
                await store.put("lease", b"4", IfMatch(second))
            assert await keys(store) == []

        run(make_store, story)

    def test_a_plain_put_replaces(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            for body in (b"long body", b"short", b""):
                await store.put("object", body)
                assert (await store.get("object")).data == body

        run(make_store, story)

    def test_one_of_many_racers_creates(self, make_store: MakeStore) -> None:
        async def racer(store: ObjectStore, name: int) -> int | None:
            try:
                await store.put("race", b"%d" % name * 1000, IfAbsent())
            except PreconditionFailed:
                assert (await store.get("race")).size in {1000, 2000}
                return None
            return name

        async def story(store: ObjectStore) -> None:
            outcomes = await asyncio.gather(*(racer(store, name) for name in range(16)))
            (winner,) = [name for name in outcomes if name is not None]
            assert (await store.get("race")).data == b"%d" % winner * 1000

        run(make_store, story)

    def test_no_increment_is_lost(self, make_store: MakeStore) -> None:
        async def increment(store: ObjectStore) -> None:
            while True:
                try:
                    current = await store.get("counter")
                    value = int(bytes(current.data)) + 1
                    await store.put("counter", b"%d" % value, IfMatch(current.etag))
                except (PreconditionFailed, StoreNotApplied):
                    continue
                return

        async def story(store: ObjectStore) -> None:
            await store.put("counter", b"0")
            for _ in range(3):
                await asyncio.gather(*(increment(store) for _ in range(5)))
            assert (await store.get("counter")).data == b"15"

        run(make_store, story)

    def test_objects_are_listed_in_key_order(self, make_store: MakeStore) -> None:
        names = ["a/b", "a/c/d", "a/c/e", "a0", "ab/c", "b", "c/d/e/f"]
        if self.lists_siblings_in_order:
            names = ["a-b", "a.b/c", *names]
        if self.has_no_directories:
            names = ["a", *names]

        async def story(store: ObjectStore) -> None:
            for name in reversed(names):
                await store.put(name, name.encode())

            async def expect(prefix: str, start_after: str = "") -> None:
                wanted = [n for n in names if n.startswith(prefix) and n > start_after]
                assert await keys(store, prefix, start_after) == wanted, (prefix, start_after)

            for prefix in ("", "a", "a/", "a/c", "a/c/", "ab", "b", "c/d/", "x", "x/", "a/b"):
                await expect(prefix)
            starts = ["a/b", "a/c/d", "a0", "b", "zzz", "a/c/zzz"]
            for start_after in [*starts, "a/c"] if self.starts_after_directories else starts:
                await expect("", start_after)
                await expect("a/", start_after)
            assert [meta.size async for meta in store.list("c/")] == [7]

        run(make_store, story)

    def test_long_listings_are_whole(self, make_store: MakeStore) -> None:
        names = [f"wal/1-5/{n:020d}.wal" for n in range(self.pages_entries)]

        async def story(store: ObjectStore) -> None:
            for first in range(0, len(names), 100):
                await asyncio.gather(*(store.put(n, b"x") for n in names[first : first + 100]))
            await store.put("wal/1-6/0", b"x")
            assert await keys(store, "wal/1-5/") == names
            assert await keys(store, "wal/1-5/", names[-3]) == names[-2:]

        run(make_store, story)

    def test_deleting_is_final_and_may_be_repeated(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            await store.put("dir/a", b"x")
            await store.put("dir/b", b"x")
            for _ in range(2):
                await store.delete("dir/a")
                with pytest.raises(ObjectNotFound):
                    await store.get("dir/a")
                assert await keys(store) == ["dir/b"]
            await store.delete("never/was")

        run(make_store, story)

    def test_many_keys_are_deleted_at_once(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            names = [f"wal/1-{number % 3}/{number:04d}" for number in range(DELETED_AT_ONCE_MAX)]
            for first in range(0, len(names), 100):
                await asyncio.gather(*(store.put(n, b"x") for n in names[first : first + 100]))
            await store.put("wal/1-1/kept", b"x")
            await store.delete(*names[1:], "wal/1-1/absent")
            assert await keys(store) == sorted([names[0], "wal/1-1/kept"])
            await store.put(names[1], b"again", IfAbsent())
            assert await keys(store) == sorted([*names[:2], "wal/1-1/kept"])

        run(make_store, story)

    @pytest.mark.parametrize("key", INVALID_KEYS, ids=lambda key: repr(key)[:20])
    def test_an_invalid_key_is_refused(self, make_store: MakeStore, key: str) -> None:
        async def story(store: ObjectStore) -> None:
            with pytest.raises(ValueError, match="key"):
                await store.put(key, b"x")
            with pytest.raises(ValueError, match="key"):
                await store.get(key)
            with pytest.raises(ValueError, match="key"):
                await store.head(key)
            with pytest.raises(ValueError, match="key"):
                await store.delete(key)

        run(make_store, story)

    def test_unusual_keys_are_kept_as_they_are(self, make_store: MakeStore) -> None:
        async def story(store: ObjectStore) -> None:
            for key in UNUSUAL_KEYS:
                await store.put(key, key.encode(), IfAbsent())
            for key in UNUSUAL_KEYS:
                assert (await store.get(key)).data == key.encode()
            assert await keys(store) == sorted(UNUSUAL_KEYS)

        run(make_store, story)
