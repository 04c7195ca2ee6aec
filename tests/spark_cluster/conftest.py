"""One cluster for all of these tests. Its executors know Tidelog only from its wheel. Two buckets,
on a shared folder and on an S3 server, each have a broker and the same history."""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from pyspark.sql import SparkSession

from tests.spark.history import History, write_history
from tests.wheels import build_wheel, copy_clone
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import accepts
from tidelog.localstack.s3_servers import start_seaweedfs
from tidelog.localstack.spark import (
    EXECUTOR_MEMORY_MB,
    SparkCluster,
    session_settings,
    spark_home,
)
from tidelog.localstack.spark_jars import class_path, s3a_jars
from tidelog.spark_source import register

WORKERS = 2
CACHE = Path(__file__).parents[2] / ".cache"


@pytest.fixture(scope="session")
def cluster(
    require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkCluster]:
    require_tool("java")
    with SparkCluster.start(tmp_path_factory.mktemp("cluster"), workers=WORKERS) as running:
        yield running
    for daemon in running.daemons:
        assert daemon.process.poll() is not None
        assert not any(accepts(port) for port in daemon.ports)
        with pytest.raises(ProcessLookupError):
            os.killpg(daemon.process.pid, 0)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with Tidelog's requirements but without Tidelog, as on a cluster's nodes."""
    folder = tmp_path_factory.mktemp("executors")
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # `site` reads the .pth files of its own folders only. Those make a checkout importable, so
    # these folders are named in another file.
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("".join(f"{each}\n" for each in folders))
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, by a name that Spark puts on the executors' path."""
    wheel = build_wheel(
        copy_clone(tmp_path_factory.mktemp("clone")), tmp_path_factory.mktemp("wheel")
    )
    return Path(shutil.copy(wheel, wheel.with_suffix(".zip")))


@pytest.fixture(scope="session")
def s3a(require_tool: Callable[[str], str]) -> list[Path]:
    """Hadoop's file system for S3, installed on the nodes."""
    require_tool("mvn")
    return s3a_jars(CACHE)


@pytest.fixture(scope="session")
def spark(
    cluster: SparkCluster,
    python: Path,
    shipped: Path,
    s3a: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("driver")
    settings = (
        session_settings(folder)
        | class_path(s3a)
        | {
            "spark.submit.pyFiles": str(shipped),
            "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
            # No task runs before both executors are there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        }
    )
    builder = SparkSession.builder.master(cluster.url).appName("tidelog cluster tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home(folder)))
        patch.setenv("PYSPARK_PYTHON", str(python))
        # Only for the driver's own Python workers: those of streams do not find pyFiles.
        patch.setenv("PYTHONPATH", str(shipped))
        # The driver's Python workers start in its folder, which is no checkout.
        with contextlib.chdir(folder):
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        register(session)
        yield session
        session.stop()


@dataclass(frozen=True)
class Place:
    """A bucket with a broker."""

    store: str
    settings: dict[str, str]
    """The options that follow `store.`."""
    broker: BrokerProcess
    history: History

    @property
    def options(self) -> dict[str, str]:
        """The store, as options of the sources and the sink."""
        return {"store": self.store} | {
            f"store.{name}": value for name, value in self.settings.items()
        }


@pytest.fixture(scope="session", params=["filesystem", "seaweedfs"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as stack:
        if request.param == "filesystem":
            (folder / "bucket").mkdir()
            url = f"file://{folder}/bucket"
        else:
            server = stack.enter_context(start_seaweedfs(folder / "seaweedfs"))
            url = server.url_of(server.bucket, "some/where")
        broker = stack.enter_context(BrokerProcess.start(url, folder / "broker.log"))
        history = write_history(broker, url)
        parts = urlsplit(url)
        store = f"{parts.scheme}://{parts.netloc}{parts.path}"
        yield Place(store, dict(parse_qsl(parts.query)), broker, history)
        history.open_producer.abort_transaction(30)
        assert broker.stop() == 0
