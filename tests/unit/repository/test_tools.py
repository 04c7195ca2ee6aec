"""If a foreign program is missing or too old, the error names the remedy, or the program is
skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.tools import MissingTool, main, require

Offer = Callable[[str, str], Path]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Puts a program on a PATH that holds nothing else, so that no real program runs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ALLOW_MISSING", raising=False)

    def put(name: str, output: str) -> Path:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '{output}'\n")
        program.chmod(0o755)
        return program

    return put


def test_a_program_that_is_new_enough_is_found(offer: Offer) -> None:
    java = offer("java", 'openjdk version "21" 2023-09-19')
    kcat = offer("kcat", "Copyright (c) 2014-2021\nVersion 1.7.1 (JSON, librdkafka 2.0.2)")
    maven = offer("mvn", "\x1b[1mApache Maven 3.8.7\x1b[m")
    assert require("java") == str(java)
    assert require("kcat") == str(kcat)
    assert require("mvn") == str(maven)


def test_a_missing_program_is_named_with_its_remedy(offer: Offer) -> None:
    with pytest.raises(MissingTool, match=r"java: not found.*apt-get install .*ALLOW_MISSING=java"):
        require("java")


def test_a_program_that_is_too_old_is_as_good_as_missing(offer: Offer) -> None:
    offer("go", "go version go1.19.8 linux/amd64")
    with pytest.raises(MissingTool, match=r"found 1\.19\.8; go 1\.24 or newer"):
        require("go")


def test_a_java_that_is_too_old_for_spark_is_named(offer: Offer) -> None:
    offer("java", 'openjdk version "11.0.20" 2023-07-18')
    with pytest.raises(MissingTool, match=r"java: found 11\.0\.20; java 17 or newer is needed"):
        require("java")


def test_a_tool_that_may_be_missing_is_skipped(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLOW_MISSING", "kcat, java")
    assert require("kcat") is None
    assert main(["kcat", "java"]) == 0
    assert main(["kcat", "mvn"]) == 1
    assert "mvn: not found" in capsys.readouterr().err


def test_a_present_tool_is_used_even_if_it_may_be_missing(
    offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOW_MISSING", "node")
    node = offer("node", "v20.20.2")
    assert require("node") == str(node)


def test_a_misspelt_name_is_refused(
    offer: Offer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLOW_MISSING", "kafkacat")
    assert main(["kcat"]) == 2
    assert "unknown tools kafkacat; known: fish, go, java, kcat" in capsys.readouterr().err
    assert main(["jawa"]) == 2
