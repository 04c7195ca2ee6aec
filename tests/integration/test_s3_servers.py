"""SeaweedFS and MinIO: the contract, races between threads, the probe, buckets, a crash."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.storage.contract import MakeStore, ObjectStoreContract
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.localstack.s3_servers import (
    S3Server,
    start_minio,
    start_seaweedfs,
)
from tidelog.storage.object_store import (
    AccessDenied,
    IfAbsent,
    PreconditionFailed,
    StoreMisconfigured,
)
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.probe import probe
from tidelog.storage.stores.s3.bucket_admin import check_bucket, create_bucket
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import parse_s3_url

pytestmark = pytest.mark.integration

RACERS = 16
_numbers = itertools.count()


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with start_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


def fresh(server: S3Server) -> MakeStore:
    url = server.url_of(server.bucket, f"contract/{next(_numbers)}")
    return lambda: S3Store(parse_s3_url(url))


class TestSeaweedFS(ObjectStoreContract):
    has_no_directories = False
    lists_siblings_in_order = False
    starts_after_directories = False

    @pytest.fixture
    def make_store(self, seaweedfs: S3Server) -> MakeStore:
        return fresh(seaweedfs)


class TestMinIO(ObjectStoreContract):
    has_no_directories = False

    @pytest.fixture
    def make_store(self, minio: S3Server) -> MakeStore:
        return fresh(minio)


@pytest.fixture(params=["seaweedfs", "minio"])
def server(request: pytest.FixtureRequest) -> S3Server:
    chosen: S3Server = request.getfixturevalue(request.param)
    return chosen


# SeaweedFS lets the racers for one key wait for each other in steps of a second.
@pytest.mark.parametrize(("name", "rounds"), [("seaweedfs", 4), ("minio", 50)])
def test_of_sixteen_threads_one_creates(
    request: pytest.FixtureRequest, name: str, rounds: int
) -> None:
    server: S3Server = request.getfixturevalue(name)
    url = server.url_of(server.bucket, "race")
    barrier = threading.Barrier(RACERS)
    winners: dict[int, list[int]] = {number: [] for number in range(rounds)}
    failures: list[BaseException] = []

    async def race(racer: int) -> None:
        store = S3Store(parse_s3_url(url))
        for number in range(rounds):
            await asyncio.to_thread(barrier.wait)
            try:
                await store.put(f"{number}", b"%d" % racer * 100, IfAbsent())
                winners[number].append(racer)
            except PreconditionFailed:
                pass

    def run(racer: int) -> None:
        try:
            asyncio.run(race(racer))
        except Exception as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(racer,)) for racer in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

    async def check() -> None:
        store = S3Store(parse_s3_url(url))
        for number, won in winners.items():
            assert len(won) == 1
            assert (await store.get(f"{number}")).data == b"%d" % won[0] * 100

    asyncio.run(check())


def test_the_server_passes_the_probe(server: S3Server) -> None:
    store = open_store(server.url_of(server.bucket, "probed"), SystemClock(), SystemEntropy())
    asyncio.run(probe(store, SystemEntropy()))


def test_a_bucket_is_created_and_good(server: S3Server) -> None:
    url = server.url_of(f"made-{next(_numbers)}", "prefix")
    assert create_bucket(url).created
    assert not create_bucket(url).created
    report = check_bucket(url)
    assert report.ok, report
    assert report.missing_permissions == ()


def test_wrong_credentials_and_a_missing_bucket_are_told_apart(server: S3Server) -> None:
    def refusal(url: str) -> str:
        store = open_store(url, SystemClock(), SystemEntropy())
        with pytest.raises((AccessDenied, StoreMisconfigured)) as caught:
            asyncio.run(probe(store, SystemEntropy()))
        return f"{type(caught.value).__name__}: {caught.value}"

    wrong_secret = replace(server, secret_key="not-the-secret")
    wrong_key = replace(server, access_key="nobody")
    for stranger in (wrong_secret, wrong_key):
        said = refusal(stranger.url)
        assert said.startswith("AccessDenied"), said
        assert "check the credentials" in said
        assert "not-the-secret" not in said
    said = refusal(server.url_of("no-such-bucket"))
    assert said.startswith("StoreMisconfigured"), said
    assert "tidelog bucket create" in said


@pytest.mark.parametrize("name", ["seaweedfs", "minio"])
def test_a_writer_gets_over_the_end_of_its_server_and_loses_nothing(
    name: str, tmp_path: Path, minio_cache: Path
) -> None:
    def start(port: int | None = None) -> S3Server:
        if name == "minio":
            return start_minio(tmp_path, minio_cache, port=port)
        return start_seaweedfs(tmp_path, port=port)

    async def write(server: S3Server) -> S3Server:
        """Make sixty puts. After half of them the server is killed and started again on its
        folder."""
        store = open_store(server.url_of(server.bucket, "crash"), SystemClock(), SystemEntropy())
        restarting = None
        for number in range(60):
            if number == 30:
                server.kill()
                port = int(server.endpoint.rpartition(":")[2])
                restarting = asyncio.create_task(asyncio.to_thread(start, port))
            await store.put(f"{number:03d}", b"%d" % number * 1000)
        assert restarting is not None
        return await restarting

    async def read(server: S3Server) -> dict[str, bytes]:
        store = open_store(server.url_of(server.bucket, "crash"), SystemClock(), SystemEntropy())
        return {meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list()}

    with start() as server, asyncio.run(write(server)) as again:
        wanted = {f"{number:03d}": b"%d" % number * 1000 for number in range(60)}
        assert asyncio.run(read(again)) == wanted
