"""A moto process for the tests of S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kept_secrets import keep
from tidelog.localstack.s3_servers import S3Server, start_moto


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """S3 as a process of its own, for all tests of the session."""
    with start_moto(tmp_path_factory.mktemp("moto")) as server:
        keep(server.secret_key, "the key of the S3 server", is_in_urls=True)
        yield server
    assert server.process.poll() is not None
