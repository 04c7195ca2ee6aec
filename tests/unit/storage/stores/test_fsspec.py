"""fsspec both ways: stores opened by pandas, pyarrow and DuckDB; fsspec URLs read as stores."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import duckdb
import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.localstack.s3_servers import S3Server
from tidelog.storage.object_store import (
    AccessDenied,
    ByteRange,
    ObjectNotFound,
    ObjectStore,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.filesystem_spec import TidelogFileSystem
from tidelog.storage.stores.fsspec_store import FsspecStore
from tidelog.storage.stores.location import open_reader
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import parse_s3_url

TABLE = pa.table({"offset": list(range(1000)), "value": [f"v{n}" for n in range(1000)]})
FILES = {
    "topics/t1/_delta_log/00000000000000000000.json": b'{"commitInfo": {}}\n',
    "topics/t1/partition=0/a.parquet": TABLE.slice(0, 400),
    "topics/t1/partition=1/b.parquet": TABLE.slice(400),
    "wal/1-1/0": bytes(range(256)) * 100,
}
TWO_PARQUETS = [key for key in FILES if key.endswith(".parquet")]


def encoded(content: bytes | pa.Table) -> bytes:
    if isinstance(content, bytes):
        return content
    sink = pa.BufferOutputStream()
    pq.write_table(content, sink, row_group_size=100)
    return sink.getvalue().to_pybytes()


def filled(store: ObjectStore) -> ObjectStore:
    async def fill() -> None:
        for key, content in FILES.items():
            await store.put(key, encoded(content))

    asyncio.run(fill())
    return store


@pytest.fixture(params=["memory", "file", "s3"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path, moto: S3Server) -> TidelogFileSystem:
    store: ObjectStore
    match request.param:
        case "memory":
            store = MemoryStore(SystemClock())
        case "file":
            store = FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1))
        case _:
            store = S3Store(parse_s3_url(moto.url_of(moto.bucket, "fsspec")))
    return TidelogFileSystem(filled(store), skip_instance_cache=True)


def test_paths_are_keys_and_slashes_make_directories(filesystem: TidelogFileSystem) -> None:
    assert filesystem.ls("", detail=False) == ["topics", "wal"]
    assert filesystem.ls("tidelog://topics/t1/", detail=False) == [
        "topics/t1/_delta_log",
        "topics/t1/partition=0",
        "topics/t1/partition=1",
    ]
    (entry,) = filesystem.ls("wal/1-1")
    assert (entry["name"], entry["type"], entry["size"]) == ("wal/1-1/0", "file", 25600)
    assert filesystem.find("topics") == [key for key in FILES if key.startswith("topics/")]
    assert filesystem.find("topics", maxdepth=1, withdirs=True) == ["topics/t1"]
    assert filesystem.find("wal/1-1/0") == ["wal/1-1/0"]
    assert filesystem.glob("tidelog://topics/*/partition=*/*.parquet") == TWO_PARQUETS
    assert filesystem.glob("**/*.parquet") == TWO_PARQUETS
    assert filesystem.isdir("topics")
    assert not filesystem.isdir("wal/1-1/0")
    assert filesystem.isfile("wal/1-1/0")
    assert filesystem.exists("")
    assert not filesystem.exists("topics/t2")
    assert [path for path, _, _ in filesystem.walk("wal")] == ["wal", "wal/1-1"]
    assert filesystem.modified("wal/1-1/0").year >= 2026
    with pytest.raises(FileNotFoundError):
        filesystem.ls("nothing")
    with pytest.raises(FileNotFoundError):
        filesystem.cat_file("nothing")


def test_bytes_and_ranges(filesystem: TidelogFileSystem) -> None:
    body = FILES["wal/1-1/0"]
    assert isinstance(body, bytes)
    assert filesystem.cat_file("wal/1-1/0") == body
    for start, end in [(0, 10), (5, None), (-7, None), (-20, -10), (100, -100), (25590, 99999)]:
        assert filesystem.cat_file("wal/1-1/0", start, end) == body[start:end], (start, end)
    assert filesystem.cat_ranges(["wal/1-1/0"] * 2, [0, 10], [4, 14]) == [body[:4], body[10:14]]
    with filesystem.open("wal/1-1/0", block_size=1000) as file:
        file.seek(20_000)
        assert file.read(300) == body[20_000:20_300]
        file.seek(-5, 2)
        assert file.read() == body[-5:]
    with filesystem.open("topics/t1/_delta_log/00000000000000000000.json", "r") as text:
        assert json.load(text) == {"commitInfo": {}}


def test_objects_are_downloaded(filesystem: TidelogFileSystem, tmp_path: Path) -> None:
    filesystem.get("wal/", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy/1-1/0").read_bytes() == FILES["wal/1-1/0"]


def test_writes_through_the_file_system_are_refused(filesystem: TidelogFileSystem) -> None:
    with pytest.raises(PermissionError, match="only brokers write"):
        filesystem.pipe_file("wal/1-1/1", b"x")
    with pytest.raises(PermissionError):
        filesystem.open("wal/1-1/1", "wb")
    with pytest.raises(PermissionError):
        filesystem.rm_file("wal/1-1/0")
    with pytest.raises(PermissionError):
        filesystem.cp_file("wal/1-1/0", "wal/1-1/1")
    assert filesystem.exists("wal/1-1/0")


def test_pyarrow_reads_tables_and_datasets(filesystem: TidelogFileSystem) -> None:
    read = pq.read_table(TWO_PARQUETS[1], filesystem=filesystem)
    assert read.select(["offset", "value"]) == TABLE.slice(400)
    dataset = ds.dataset(
        "topics/t1",
        filesystem=filesystem,
        format="parquet",
        partitioning="hive",
        exclude_invalid_files=True,
    )
    assert dataset.count_rows() == 1000
    assert dataset.to_table(filter=ds.field("partition") == 0).num_rows == 400


def test_duckdb_reads_by_glob(filesystem: TidelogFileSystem) -> None:
    with duckdb.connect() as connection:
        connection.register_filesystem(filesystem)
        query = "select count(*), min(\"offset\"), max(value) from read_parquet('{}')"
        found = connection.sql(query.format("tidelog://topics/*/*/*.parquet")).fetchall()
        assert found == [(1000, 0, "v999")]
        found = connection.sql(query.format(f"tidelog://{TWO_PARQUETS[0]}")).fetchall()
        assert found == [(400, 0, "v99")]


def test_pandas_finds_the_protocol_by_its_entry_point(tmp_path: Path) -> None:
    filled(FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1)))
    frame = pd.read_parquet(
        f"tidelog://{TWO_PARQUETS[0]}", storage_options={"store": tmp_path.as_uri()}
    )
    assert list(frame["offset"]) == list(range(400))


def test_a_store_may_be_chained_behind_the_key(tmp_path: Path) -> None:
    filled(FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1)))
    with fsspec.open(f"tidelog://wal/1-1/0::{tmp_path.as_uri()}") as file:
        assert file.read(4) == b"\x00\x01\x02\x03"


def test_a_filesystem_survives_pickling(tmp_path: Path) -> None:
    filled(FilesystemStore(tmp_path, SystemClock(), SeededEntropy(1)))
    filesystem = fsspec.filesystem("tidelog", store=tmp_path.as_uri())
    again = pickle.loads(pickle.dumps(filesystem))
    assert again.cat_file("wal/1-1/0", 0, 2) == b"\x00\x01"


def test_without_a_store_the_remedy_is_named() -> None:
    with pytest.raises(ValueError, match="storage_options="):
        fsspec.filesystem("tidelog")


# --- fsspec URLs as stores ---


@pytest.fixture
def foreign() -> Iterator[str]:
    """An fsspec URL with a scheme that Tidelog does not define, and the files below it."""
    memory = MemoryFileSystem()
    for key, content in FILES.items():
        memory.pipe_file(f"/bucket/prefix/{key}", encoded(content))
    fsspec.register_implementation("foreign", ForeignFileSystem, clobber=True)
    yield "foreign://bucket/prefix"
    memory.rm("/bucket", recursive=True)


class ForeignFileSystem(MemoryFileSystem):
    """fsspec's memory file system under another name; `broken` paths fail."""

    protocol = "foreign"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("foreign://", "memory://")))

    def cat_file(self, path: str, *args: object, **kwargs: object) -> bytes:
        if "1-1" in path:
            raise ConnectionResetError("the connection broke")
        return bytes(super().cat_file(path, *args, **kwargs))


def test_any_fsspec_url_is_read(foreign: str) -> None:
    async def story() -> None:
        store = open_reader(foreign, SystemClock(), SeededEntropy(1))
        assert store.url == "foreign://bucket/prefix"
        assert [meta.key async for meta in store.list()] == list(FILES)
        assert [meta.key async for meta in store.list("topics/t1/pa")] == TWO_PARQUETS
        start = "topics/t1/partition=0/a.parquet"
        assert [meta.key async for meta in store.list("topics/", start)] == TWO_PARQUETS[1:]
        assert [meta.key async for meta in store.list("nothing/")] == []
        body = encoded(FILES[TWO_PARQUETS[0]])
        stored = await store.get(TWO_PARQUETS[0])
        assert (stored.data, stored.size) == (body, len(body))
        assert (await store.get(TWO_PARQUETS[0], Suffix(4))).data == b"PAR1"
        assert (await store.get(TWO_PARQUETS[0], ByteRange(4, 20))).data == body[4:24]
        assert (await store.get(TWO_PARQUETS[0], ByteRange(10**6, 20))).data == b""
        meta = await store.head(TWO_PARQUETS[0])
        assert (meta.etag, meta.size) == (stored.etag, len(body))
        assert meta.modified_ms > 1_700_000_000_000
        for absent in ("nothing", "topics"):
            with pytest.raises(ObjectNotFound):
                await store.get(absent)
        await store.close()

    asyncio.run(story())


def test_an_fsspec_store_is_read_only(foreign: str) -> None:
    async def story() -> None:
        store = open_reader(foreign, SystemClock(), SeededEntropy(1))
        with pytest.raises(AccessDenied, match="read-only"):
            await store.put("a", b"x")
        with pytest.raises(AccessDenied, match="read-only"):
            await store.delete("wal/1-1/0")
        await store.close()

    asyncio.run(story())


def test_a_failed_read_through_fsspec_may_be_repeated(foreign: str) -> None:
    async def story() -> None:
        store = FsspecStore(foreign)
        with pytest.raises(StoreNotApplied, match="ConnectionResetError: the connection broke"):
            await store.get("wal/1-1/0")
        await store.close()

    asyncio.run(story())


class DistantFileSystem(MemoryFileSystem):
    """Connects when it is opened, as those of `ftp` and `sftp` do; its host is not there."""

    protocol = "distant"

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")


def test_a_host_that_is_not_there_is_named() -> None:
    fsspec.register_implementation("distant", DistantFileSystem, clobber=True)
    with pytest.raises(StoreNotApplied) as caught:
        open_reader("distant://host/prefix", SystemClock(), SeededEntropy(1))
    said = "distant://host/prefix: opening it failed: gaierror: [Errno -2] Name or service"
    assert str(caught.value).startswith(said)
