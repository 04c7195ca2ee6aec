"""Java libraries are fetched once. An error names the missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.localstack.maven import JarsNotAvailable, fetch_jars

ARTIFACT = "org.example:thing:1.2"


def programs(folder: Path, mvn: str) -> Path:
    """A folder with a `java` and with an `mvn` that runs the script."""
    folder.mkdir()
    for name, script in (("java", "exit 0"), ("mvn", mvn)):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def test_present_jars_are_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = f'echo "$@" >> {tmp_path}/calls'
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", count)))
    folder = tmp_path / "jars"
    for _ in range(2):
        assert fetch_jars(folder, [ARTIFACT], ["org.example"]) == folder / "lib"
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert f"-DoutputDirectory={folder / 'lib'}" in call
    assert "-DincludeGroupIds=org.example" in call
    assert (
        "<artifactId>thing</artifactId><version>1.2</version>" in (folder / "pom.xml").read_text()
    )


def test_a_pinned_version_counts_for_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", f'echo "$@" > {tmp_path}/call')))
    monkeypatch.chdir(tmp_path)
    # Maven resolves a relative path against the pom's folder.
    assert fetch_jars(Path("jars"), [ARTIFACT], pinned=["org.example:part:0.9"]) == (
        tmp_path / "jars" / "lib"
    )
    assert f"-DoutputDirectory={tmp_path}/jars/lib" in (tmp_path / "call").read_text()
    managed, wanted = (tmp_path / "jars" / "pom.xml").read_text().split("</dependencyManagement>")
    assert "<artifactId>part</artifactId><version>0.9</version>" in managed
    assert "thing" not in managed
    assert "<artifactId>thing</artifactId><version>1.2</version>" in wanted
    assert "part" not in wanted


def test_without_maven_the_error_names_the_programs_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JarsNotAvailable, match="install a JDK 17 and Maven"):
        fetch_jars(tmp_path / "jars", [ARTIFACT])


def test_a_failed_fetch_is_repeated_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", "echo no such thing; exit 1")))
    for _ in range(2):
        with pytest.raises(JarsNotAvailable, match=r"org.example:thing:1.2:\nno such thing"):
            fetch_jars(tmp_path / "jars", [ARTIFACT])
