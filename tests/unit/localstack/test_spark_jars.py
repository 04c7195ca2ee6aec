"""Which jars Spark gets besides its own."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from tidelog.localstack.maven import JarsNotAvailable
from tidelog.localstack.spark_jars import class_path, kafka_connector_jars

CONNECTOR = f"spark-sql-kafka-0-10_2.13-{pyspark.__version__}"
FETCHED = (
    CONNECTOR,
    "spark-token-provider-kafka-0-10_2.13-4.0.0",
    "kafka-clients-3.9.2",
    "hadoop-client-api-3.4.1",
    "scala-library-2.13.15",
    "slf4j-api-1.7.36",
)


def maven(folder: Path, script: str) -> None:
    folder.mkdir()
    for name, text in (("java", "exit 0"), ("mvn", script)):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def test_sparks_own_jars_are_not_there_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = f": > {'.jar; : > '.join(FETCHED)}.jar"
    fetch = f'for last; do :; done; /bin/mkdir "${{last#*=}}" && cd "${{last#*=}}" && {made}'
    maven(tmp_path / "bin", fetch)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    jars = kafka_connector_jars(tmp_path)
    names = {jar.stem for jar in jars}
    assert names == set(FETCHED[:3])
    together = ":".join(map(str, jars))
    assert set(class_path(jars).values()) == {together}


def test_a_connector_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven(tmp_path / "bin", "echo not found; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(JarsNotAvailable, match=r"spark-token-provider-kafka.*\nnot found"):
        kafka_connector_jars(tmp_path)
