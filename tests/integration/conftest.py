"""S3 servers and tools that the tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tidelog.localstack.made_once import made_once
from tidelog.localstack.s3_servers import (
    MINIO_PROGRAM_VARIABLE,
    MissingTool,
    S3Server,
    minio_program,
    start_minio,
)

CACHE = Path(__file__).parents[2] / ".cache"
HELM = "helm.sh/helm/v3/cmd/helm@v3.19.0"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the chosen tests need: on a new machine that takes longer than a test may."""
    if session.config.option.collectonly:
        return
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    # If Go is missing, the fixtures say so.
    with suppress(MissingTool):
        if "minio_cache" in needed:
            minio_program(CACHE)
        if "helm" in needed:
            _helm_program()


@pytest.fixture(scope="session")
def minio_cache(require_tool: Callable[[str], str]) -> Path:
    """The folder in which MinIO is found, or built by Go."""
    if MINIO_PROGRAM_VARIABLE not in os.environ and not list(CACHE.glob("minio-*/minio")):
        require_tool("go")
    return CACHE


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory, minio_cache: Path) -> Iterator[S3Server]:
    with start_minio(tmp_path_factory.mktemp("minio"), minio_cache) as server:
        yield server


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm, built once by Go."""
    try:
        return _helm_program()
    except MissingTool as missing:
        pytest.skip(str(missing))


def _helm_program() -> Path:
    folder = CACHE / f"helm-{HELM.rpartition('@')[2]}"
    with made_once(folder) as to_do:
        if to_do:
            go = shutil.which("go")
            if go is None:
                raise MissingTool("without go, which builds helm")
            environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-modcacherw"}
            subprocess.run([go, "install", HELM], env=environment, check=True)
    return folder / "helm"
