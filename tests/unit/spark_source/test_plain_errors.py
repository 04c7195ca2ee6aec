"""Spark's workers put a traceback into an error's message, unless they are told not to."""

from __future__ import annotations

import io
import os

import pytest
from pyspark.serializers import read_int
from pyspark.util import handle_worker_exception

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.plain_errors import plain_errors


def told(error: Exception) -> str:
    """The report of an error by a worker of Spark's."""
    out = io.BytesIO()
    try:
        with plain_errors():
            raise error
    except type(error) as raised:
        handle_worker_exception(raised, out)
    out.seek(0)
    read_int(out)
    return out.read(read_int(out)).decode()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.mark.usefixtures("worker")
def test_an_error_of_ours_is_its_message() -> None:
    assert told(InvalidConfiguration("the option store is missing")) == (
        "tidelog.errors.InvalidConfiguration: the option store is missing\n"
    )


@pytest.mark.usefixtures("worker")
def test_a_mistake_of_the_code_keeps_its_traceback() -> None:
    assert told(KeyError("x")).startswith("Traceback")


def test_outside_of_spark_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME", raising=False)
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    assert told(InvalidConfiguration("x")).startswith("Traceback")
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
