"""The probe refuses stores that break a promise, and names the promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.localstack.s3_servers import S3Server
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMeta,
    ObjectStore,
    PreconditionFailed,
    StoredObject,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
)
from tidelog.storage.stores.faulty import FaultyStore, StoreFault
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.probe import probe

Data = Buffer | Sequence[Buffer]


class IgnoresConditions(MemoryStore):
    async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
        return await super().put(key, data)


class IgnoresMatches(MemoryStore):
    async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
        kept = condition if isinstance(condition, IfAbsent) else None
        return await super().put(key, data, kept)


class IgnoresStaleMatches(MemoryStore):
    """A store that refuses only ETags that it never gave."""

    async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
        if isinstance(condition, IfMatch) and int(condition.etag) > 0:
            condition = None
        return await super().put(key, data, condition)


class RefusesAllMatches(MemoryStore):
    async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
        if isinstance(condition, IfMatch):
            raise PreconditionFailed(key, "never")
        return await super().put(key, data, condition)


class ReadsOldVersions(MemoryStore):
    first: StoredObject | None = None

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        self.first = self.first or await super().get(key, byte_range)
        return self.first


class IgnoresRanges(MemoryStore):
    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await super().get(key, None if isinstance(byte_range, ByteRange) else byte_range)


class IgnoresSuffixes(MemoryStore):
    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await super().get(key, None if isinstance(byte_range, Suffix) else byte_range)


class ListsLate(MemoryStore):
    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        for meta in ():
            yield meta


class OtherEtags(MemoryStore):
    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        stored = await super().get(key, byte_range)
        return StoredObject(stored.data, stored.size, f"W/{stored.etag}")


class KeepsDeleted(MemoryStore):
    deletions = 0

    async def delete(self, *keys: str) -> None:
        self.deletions += 1
        if self.deletions > 1:
            await super().delete(*keys)


class ReadOnly(MemoryStore):
    async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
        raise AccessDenied(key, "put is refused (403 AccessDenied)")


class AppendOnly(MemoryStore):
    async def delete(self, *keys: str) -> None:
        raise AccessDenied(keys[0], "delete is refused (403 AccessDenied)")


def run(store: ObjectStore) -> StoreError | None:
    try:
        asyncio.run(probe(store, SeededEntropy(1)))
    except StoreError as error:
        return error
    return None


def left_behind(store: ObjectStore) -> list[str]:
    async def keys() -> list[str]:
        return [meta.key async for meta in store.list()]

    return asyncio.run(keys())


def test_good_stores_pass_and_keep_nothing(tmp_path: Path, moto: S3Server) -> None:
    clock, entropy = SystemClock(), SeededEntropy(1)
    urls = [f"file://{tmp_path}", "memory://probe", moto.url_of(moto.bucket, "probed")]
    for url in urls:
        store = open_store(url, clock, entropy)
        assert run(store) is None, url
        assert left_behind(store) == []


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (IgnoresConditions, "put-if-absent: a second create"),
        (IgnoresMatches, "put-if-match: an overwrite with another version's ETag succeeded"),
        (IgnoresStaleMatches, "put-if-match: an overwrite with a stale ETag succeeded"),
        (RefusesAllMatches, "put-if-match: an overwrite with the current ETag is refused"),
        (ReadsOldVersions, "read-after-write"),
        (IgnoresRanges, "range reads"),
        (IgnoresSuffixes, "suffix reads"),
        (ListsLate, "list-after-write"),
        (OtherEtags, "versions: PUT and GET give different ETags"),
        (KeepsDeleted, "read-after-delete"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused(kind: type[MemoryStore], promise: str) -> None:
    store = kind(SystemClock(), "memory://broken")
    error = run(store)
    assert isinstance(error, StoreMisconfigured)
    assert f"memory://broken: the store breaks {promise}" in str(error)
    assert "MinIO" in str(error), "the remedy"
    if kind is not ListsLate:
        assert left_behind(store) == []


@pytest.mark.parametrize(("kind", "verb"), [(ReadOnly, "write"), (AppendOnly, "delete")])
def test_a_missing_permission_is_named(kind: type[MemoryStore], verb: str) -> None:
    error = run(kind(SystemClock(), "memory://denied"))
    assert isinstance(error, AccessDenied)
    assert f"memory://denied: the store does not let Tidelog {verb} objects" in str(error)


def test_a_full_disk_is_named_as_such() -> None:
    class Full(MemoryStore):
        async def put(self, key: str, data: Data, condition: Condition | None = None) -> str:
            raise StoreFull(key, "the disk is full")

    error = run(Full(SystemClock(), "memory://full"))
    assert isinstance(error, StoreFull)
    assert str(error) == "memory://full: the disk is full"


def test_an_unknown_outcome_is_tried_again_with_another_key() -> None:
    truth = MemoryStore(SystemClock())
    faulty = FaultyStore(truth, SystemClock(), SeededEntropy(1))
    faulty.plan("put", StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST)
    assert run(faulty) is None
    assert left_behind(truth) == []
    faulty.plan("put", *[StoreFault.ANSWER_LOST] * 3)
    assert isinstance(run(faulty), StoreOutcomeUnknown)


def test_a_store_that_does_not_answer_is_named_with_a_remedy() -> None:
    faulty = FaultyStore(
        MemoryStore(SystemClock(), "memory://away"), SystemClock(), SeededEntropy(1)
    )
    faulty.plan("put", StoreFault.REFUSED)
    refusal = run(faulty)
    assert isinstance(refusal, StoreNotApplied)
    assert refusal.key == "memory://away"
    assert "Check the address" in str(refusal)


def test_a_missing_bucket_has_a_remedy(moto: S3Server) -> None:
    store = open_store(moto.url_of("no-such-bucket"), SystemClock(), SeededEntropy(1))
    error = run(store)
    assert isinstance(error, StoreMisconfigured)
    assert "bucket no-such-bucket does not exist" in str(error)
    assert "tidelog bucket create" in str(error)
