"""S3 servers that the tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidelog.localstack.s3_servers import MINIO_PROGRAM_VARIABLE, S3Server, start_minio

CACHE = Path(__file__).parents[2] / ".cache"


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
