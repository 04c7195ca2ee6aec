"""Reads from S3: the store's options, its requests, and the errors of wrong options."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.unit.broker.one_broker import TOPIC
from tests.unit.bucket.bucket_world import world
from tests.unit.spark_source.spark_world import COMMITTED, history, rows_of, schema_of, values
from tests.unit.storage.scripted_server import ScriptedServer, error
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import S3Server
from tidelog.spark_source import committed_files, s3a_options, table_path
from tidelog.spark_source.source import TidelogSource
from tidelog.storage.object_store import AccessDenied, StoreError, StoreNotApplied
from tidelog.storage.stores.location import open_store


def given(url: str) -> dict[str, str]:
    """An address in a URL's options as options of the source."""
    parts = urlsplit(url)
    extra = {f"store.{name}": value for name, value in parse_qsl(parts.query)}
    return {"store": f"{parts.scheme}://{parts.netloc}{parts.path}"} | extra


async def write(url: str) -> None:
    store = open_store(url, SystemClock(), SeededEntropy(3))
    async with asyncio.timeout(120), world(store).broker() as broker:
        await history(broker, store)
    await store.close()


def test_a_batch_is_read_from_s3_and_its_files_are_named_for_hadoop(moto: S3Server) -> None:
    moto.create_bucket("spark")
    url = moto.url_of("spark", "some/where")
    asyncio.run(write(url))
    options = given(url)
    found = rows_of(TidelogSource({"subscribe": TOPIC} | options), ["value"])
    assert values(found) == COMMITTED
    store = options.pop("store")
    settings = {name.removeprefix("store."): value for name, value in options.items()}
    files = committed_files(store, TOPIC, **settings)
    assert [each.rows for each in files] == [2, 2]
    prefix = table_path(store, TOPIC, **settings)
    assert prefix.startswith("s3a://spark/some/where/topics/")
    assert all(each.path.startswith(f"{prefix}/partition=0/") for each in files)


def test_a_bucket_that_is_not_there_is_named(moto: S3Server) -> None:
    with pytest.raises(StoreError, match="bucket nowhere does not exist; create it with: tidelog"):
        TidelogSource({"subscribe": TOPIC} | given(moto.url_of("nowhere", "x")))


def test_a_store_that_refuses_is_named_with_the_reason() -> None:
    with ScriptedServer([error(403, "AccessDenied")]) as server:
        address = f"s3://bucket/prefix?endpoint={server.endpoint}&region=eu-west-1"
        with pytest.raises(AccessDenied, match="403 AccessDenied") as told:
            TidelogSource({"subscribe": TOPIC} | given(server.url))
    assert str(told.value).startswith(address)
    assert "SECRETKEY" not in str(told.value)


@pytest.mark.usefixtures("impatient_stores")
def test_a_store_that_does_not_answer_is_named_to_source_and_sink() -> None:
    (port,) = free_ports(1)
    url = f"s3://lake/prod?endpoint=http://127.0.0.1:{port}"
    store = given(f"{url}&access_key_id=me&secret_access_key=hush")
    sink = {"kafka.bootstrap.servers": "127.0.0.1:1", "transactionalId": "t", "batchId": "0"}

    def write() -> None:
        TidelogSource({"topic": TOPIC} | store | sink).writer(schema_of("value"), False)

    for use in (lambda: TidelogSource({"subscribe": TOPIC} | store), write):
        with pytest.raises(StoreNotApplied, match="Connection refused") as told:
            use()
        assert str(told.value).startswith(url)
        assert "hush" not in str(told.value)


def test_hadoop_is_told_of_this_bucket_and_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"access_key_id": "me", "secret_access_key": "hush", "session_token": "now"}
    found = s3a_options("s3://spark/some/where", endpoint="http://127.0.0.1:9000", **given)
    named = {name.removeprefix("fs.s3a.bucket.spark."): value for name, value in found.items()}
    assert named == {
        "endpoint": "http://127.0.0.1:9000",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": "me",
        "secret.key": "hush",
        "session.token": "now",
    }
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert s3a_options("s3://spark") == {
        "fs.s3a.bucket.spark.endpoint.region": "eu-central-1",
        "fs.s3a.bucket.spark.path.style.access": "false",
    }
    assert s3a_options("file:///somewhere") == {}


def test_hadoop_gets_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(InvalidConfiguration, match="s3a knows no profiles"):
        s3a_options("s3://spark", profile="mine")
