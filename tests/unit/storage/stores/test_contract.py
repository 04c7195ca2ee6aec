"""The stores in memory, in files and in S3, each against the same contract."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.storage.contract import MakeStore, ObjectStoreContract, run
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.localstack.s3_servers import S3Server
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.faulty import FaultyStore
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.storage.stores.retrying import RetryingStore
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import parse_s3_url
from tidelog.storage.stores.timeouts import TimeoutStore

_numbers = itertools.count()


def locked_array(size: int) -> NDArray[np.uint8]:
    """A locked array, like those whose views the channel between processes gives."""
    array = np.zeros(size, np.uint8)
    array.flags.writeable = False
    return array


class TestMemoryStore(ObjectStoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda: MemoryStore(SystemClock())

    @pytest.mark.parametrize("body", [bytes(1000), locked_array(1000)], ids=["bytes", "array"])
    def test_bytes_are_kept_without_a_copy_but_no_others_for_their_sake(
        self, make_store: MakeStore, body: Any
    ) -> None:
        async def story(store: ObjectStore) -> None:
            for key, piece in (
                ("whole", memoryview(body)),
                ("most", memoryview(body)[:900]),
                ("part", memoryview(body)[:100]),
            ):
                await store.put(key, piece)
            kept = {
                key: memoryview((await store.get(key)).data) for key in ("whole", "most", "part")
            }
            assert [view.obj is body for view in kept.values()] == [True, True, False]
            assert [len(view) for view in kept.values()] == [1000, 900, 100]

        run(make_store, story)

    @pytest.mark.parametrize(("parts", "is_kept"), [(3, True), (1, False)])
    def test_parts_that_together_are_most_of_it_are_kept_too(
        self, make_store: MakeStore, parts: int, is_kept: bool
    ) -> None:
        async def story(store: ObjectStore) -> None:
            array = locked_array(1000)
            await store.put("key", [array.data[at : at + 300] for at in range(0, 300 * parts, 300)])
            kept = weakref.ref(array)
            del array
            assert (kept() is not None) == is_kept
            assert bytes((await store.get("key")).data) == bytes(300 * parts)

        run(make_store, story)

    def test_mutable_memory_is_copied(self, make_store: MakeStore) -> None:
        body = np.zeros(1000, np.uint8)
        part = body[:]
        part.flags.writeable = False
        for each in (body.data, body.data.toreadonly(), part.data):

            async def story(store: ObjectStore, data: memoryview = each) -> None:
                await store.put("key", data)
                body[:] = 7
                assert bytes((await store.get("key")).data) == bytes(1000)
                body[:] = 0

            run(make_store, story)


class TestFilesystemStore(ObjectStoreContract):
    has_no_directories = False

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: FilesystemStore(
            tmp_path / f"{next(_numbers)}", SystemClock(), SeededEntropy(1)
        )


class TestS3Store(ObjectStoreContract):
    @pytest.fixture
    def make_store(self, moto: S3Server) -> MakeStore:
        url = moto.url_of(moto.bucket, f"contract/{next(_numbers)}")
        return lambda: S3Store(parse_s3_url(url))


class TestS3StoreWithSignedPayloads(ObjectStoreContract):
    pages_entries = 5

    @pytest.fixture
    def make_store(self, moto: S3Server) -> MakeStore:
        url = moto.url_of(moto.bucket, f"contract/{next(_numbers)}") + "&sign_payload=true"
        return lambda: S3Store(parse_s3_url(url))


class TestWrappedStore(ObjectStoreContract):
    """Wrappers that have no work to do change nothing."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        clock, entropy = SystemClock(), SeededEntropy(1)

        def wrapped() -> ObjectStore:
            faulty = FaultyStore(MemoryStore(clock), clock, entropy)
            return RetryingStore(TimeoutStore(MeteredStore(faulty, clock), 60), clock, entropy)

        return wrapped
