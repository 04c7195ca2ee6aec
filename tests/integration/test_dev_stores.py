"""`tidelog dev` on the S3 servers that it starts itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.localstack.test_dev import serves_and_ends
from tidelog.localstack.s3_servers import MINIO_PROGRAM_VARIABLE, minio_program

pytestmark = pytest.mark.integration


def test_brokers_serve_on_seaweedfs_and_ctrl_c_ends_all_processes() -> None:
    serves_and_ends(2, "--brokers", "2", "--store", "seaweedfs")


def test_brokers_serve_on_minio_and_ctrl_c_ends_all_processes(
    minio_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Built once for all tests, not into the user's own cache.
    monkeypatch.setenv(MINIO_PROGRAM_VARIABLE, str(minio_program(minio_cache)))
    serves_and_ends(2, "--brokers", "2", "--store", "minio")
