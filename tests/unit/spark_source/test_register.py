"""With a recent PySpark the formats are registered. Without one the error names the remedy."""

from __future__ import annotations

import sys

import pyspark
import pytest
from pyspark.sql.datasource import DataSource

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source import register


class Session:
    """The part of a Spark session that registering needs."""

    def __init__(self) -> None:
        self.dataSource = self
        self.names: list[str] = []

    def register(self, source: type[DataSource]) -> None:
        self.names.append(source.name())


def test_all_formats_are_registered() -> None:
    session = Session()
    register(session)
    assert session.names == ["tidelog", "tidelog.transactions", "tidelog.groups"]


def test_without_pyspark_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(
        InvalidConfiguration, match=r"not installed: install Tidelog with its extra"
    ):
        register(Session())


def test_an_old_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(InvalidConfiguration, match=r"PySpark 4\.1\.2 is too old: .* 4\.2 or newer"):
        register(Session())
