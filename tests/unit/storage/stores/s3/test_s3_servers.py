"""The starters of S3 servers: their errors name the fault, and they leave no process behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tidelog.localstack import s3_servers
from tidelog.localstack.moto_process import OneWriteAtATime
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import (
    MissingTool,
    S3Server,
    ServerNotReady,
    minio_program,
    start_moto,
)
from tidelog.storage.object_store import IfAbsent, PreconditionFailed
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import parse_s3_url

RACERS, ROUNDS = 16, 25


def test_of_threads_that_race_over_http_one_creates(moto: S3Server) -> None:
    """Only moto has two winners now and then: it checks first, and then acts."""
    barrier = threading.Barrier(RACERS)
    wins: Counter[int] = Counter()
    failures: list[BaseException] = []

    async def race(name: int) -> None:
        store = S3Store(parse_s3_url(moto.url_of(moto.bucket, "threads")))
        for number in range(ROUNDS):
            await asyncio.to_thread(barrier.wait)
            try:
                await store.put(f"{number}", b"%d" % name * 100, IfAbsent())
                wins[number] += 1
            except PreconditionFailed:
                pass

    def racer(name: int) -> None:
        try:
            asyncio.run(race(name))
        except Exception as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=racer, args=(name,)) for name in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert wins == dict.fromkeys(range(ROUNDS), 1)


def test_writes_are_entered_one_at_a_time_and_reads_at_once() -> None:
    inside: list[str] = []
    crowds: list[list[str]] = []
    reading, written = threading.Event(), threading.Event()

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "GET":
            reading.set()
            written.wait(30)
            return [b""]
        inside.append(method)
        crowds.append(list(inside))
        reading.wait(30)
        inside.remove(method)
        return [environ["wsgi.input"].read()]

    served = OneWriteAtATime(application)

    class Body:
        def read(self, length: int) -> bytes:
            return b"x" * length

    def write() -> None:
        environ = {"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": "3", "wsgi.input": Body()}
        assert list(served(environ, None)) == [b"xxx"]

    writers = [threading.Thread(target=write) for _ in range(8)]
    reader = threading.Thread(target=lambda: list(served({"REQUEST_METHOD": "GET"}, None)))
    for thread in [*writers, reader]:
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    reader.join()
    assert crowds == [["PUT"]] * 8


def test_moto_ends_with_its_parent_process(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from tidelog.localstack.s3_servers import start_moto;"
        "server = start_moto(pathlib.Path(sys.argv[1])); print(server.process.pid, flush=True);"
        "import os; os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    status = Path(f"/proc/{int(done.stdout)}")
    for _ in range(100):
        if not status.exists() or "moto_process" not in (status / "cmdline").read_text():
            return
        threading.Event().wait(0.1)
    pytest.fail("moto outlived its starter")


def test_a_foreign_server_is_not_taken_for_ours(moto: S3Server, tmp_path: Path) -> None:
    port = int(moto.endpoint.rpartition(":")[2])
    with pytest.raises(ServerNotReady, match=f"moto cannot start: port {port} is in use"):
        start_moto(tmp_path, port=port, bucket="another")


def test_a_server_that_ends_at_once_is_told_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_servers, "minio_program", lambda cache: Path("/bin/sh"))
    (tmp_path / "server").write_text("echo no such disk >&2; exit 3")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServerNotReady, match=r"minio ended with 3\nno such disk"):
        s3_servers.start_minio(tmp_path, tmp_path)


def test_a_server_that_never_becomes_ready_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_servers, "READY_SECONDS_MAX", 0.5)
    monkeypatch.setattr(s3_servers, "minio_program", lambda cache: Path("/bin/sh"))
    (tmp_path / "server").write_text("echo thinking; sleep 100")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServerNotReady, match=r"minio is not ready(?s:.*)thinking"):
        s3_servers.start_minio(tmp_path, tmp_path)


def test_a_missing_program_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TIDELOG_MINIO", raising=False)
    with pytest.raises(MissingTool, match="go is missing: install Go"):
        minio_program(tmp_path)
    monkeypatch.setenv("TIDELOG_MINIO", str(tmp_path / "none"))
    with pytest.raises(MissingTool, match="TIDELOG_MINIO names"):
        minio_program(tmp_path)


def test_a_build_of_minio_is_told_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    steps = "for n in $(seq 120); do echo package-$n >&2; done"
    go.write_text(f'#!/bin/sh\n{steps}\necho > "$GOBIN/minio"\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("TIDELOG_MINIO", raising=False)
    told: list[str] = []
    cache = tmp_path / "cache"
    assert minio_program(cache, told.append).exists()
    begin, *progress = told
    assert "building MinIO" in begin
    assert "minutes" in begin
    assert progress == ["  50 steps, at package-50", "  100 steps, at package-100"]
    # The program is in the cache now.
    assert minio_program(cache, told.append).exists()
    assert len(told) == 3


def test_a_build_of_minio_that_fails_is_told_with_go_s_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("TIDELOG_MINIO", raising=False)
    with pytest.raises(MissingTool, match=r"could not build MinIO .*:\nno such module"):
        minio_program(tmp_path / "cache")


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
