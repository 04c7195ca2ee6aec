"""Fixtures of tests of stores: a moto process, and stores that soon give up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.kept_secrets import keep
from tidelog.localstack.s3_servers import S3Server, start_moto
from tidelog.storage.stores import retrying


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """S3 in a separate process, for all tests of the session."""
    # moto accepts each key. Its usual one is no secret: `tidelog dev` prints it.
    key = keep("the-key-of-these-tests", "the key of the S3 server", is_in_urls=True)
    with start_moto(tmp_path_factory.mktemp("moto")) as server:
        yield replace(server, secret_key=key)
    assert server.process.poll() is not None


@pytest.fixture
def impatient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that are opened give up a request after a second."""
    settings = partial(retrying.StoreRetrySettings, deadline_ms=1_000)
    monkeypatch.setattr(retrying, "StoreRetrySettings", settings)
