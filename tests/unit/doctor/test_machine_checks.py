"""The checks of this machine, with a fake Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.doctor import machine_checks
from tidelog.doctor.findings import Finding, Grade
from tidelog.doctor.machine_checks import machine_findings


def made_java(folder: Path, says: str, code: int = 0) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


def spark(environment: dict[str, str]) -> Finding:
    (found,) = [each for each in machine_findings(environment) if each.check == "spark"]
    return found


def test_versions_are_told() -> None:
    found = machine_findings({})[0]
    assert (found.check, found.verdict) == ("versions", Grade.OK)
    assert "python 3." in found.found
    assert "boto3 1." in found.found
    assert "pyarrow 2" in found.found


def test_java_of_java_home_counts_before_the_path(tmp_path: Path) -> None:
    program = made_java(tmp_path, 'openjdk version "21.0.3" 2024-04-16')
    found = spark({"JAVA_HOME": str(tmp_path), "PATH": "/nowhere"})
    assert found.verdict is Grade.OK
    assert found.found.startswith(f"java 21.0.3 ({program}), pyspark 4")
    assert spark({"PATH": str(program.parent)}).found == found.found


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ('java version "1.8.0_412"', 0, "java 1.8.0 is too old"),
        ("no such option", 1, "does not run"),
    ],
)
def test_a_java_that_spark_cannot_use_is_a_warning(
    tmp_path: Path, says: str, code: int, words: str
) -> None:
    made_java(tmp_path, says, code)
    found = spark({"JAVA_HOME": str(tmp_path)})
    assert found.verdict is Grade.WARNING
    assert words in found.found
    assert "Java 17 or newer" in found.remedy


def test_no_java_matters_only_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark({"PATH": "/nowhere"}).verdict is Grade.WARNING
    monkeypatch.setattr(machine_checks, "_installed", lambda name: None)
    found = spark({"PATH": "/nowhere"})
    assert found.verdict is Grade.OK
    assert found.found == "no java, pyspark not installed: Spark cannot run here"
