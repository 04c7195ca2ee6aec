"""The examples of the documents run as written."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tests.example_runs import late_flights_are_copied_once
from tidelog.testing.broker import Broker

ROOT = Path(__file__).resolve().parents[3]


def examples(document: str, first_line: str = "") -> list[str]:
    """The document's Python blocks that begin with `first_line`; by default all."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)
    return [block for block in blocks if block.startswith(first_line)]


def test_the_sdks_page(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"bootstrap": broker.bootstrap, "store": broker.store}
    found = examples("docs/SDK.md")
    assert len(found) >= 8
    log = logging.getLogger("tidelog")
    before = [*log.handlers]
    try:
        for example in found:
            exec(example, names)
    finally:
        log.handlers = before
    # The table and DuckDB count three messages: one flight, and two of a transaction.
    assert "\n3\n" in capsys.readouterr().out
    assert {message.value for message in broker.read("upper")} >= {b"A", b"B"}


def test_the_application_that_copies_late_flights(broker: Broker) -> None:
    late_flights_are_copied_once(broker.bootstrap)


def test_the_readmes_quick_start(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = examples("README.md", "from tidelog import")
    exec(example.replace("127.0.0.1:9092", broker.bootstrap), {})
    assert "IAH to EWR" in capsys.readouterr().out
