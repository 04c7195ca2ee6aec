"""Spark starts a process for each source and each plan. A short query spends most of its time
loading modules."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

IMPORT_SECONDS_MAX = 120

PLANNED = """
import json, sys
from tidelog.spark_source.source import TidelogSource
from tidelog.spark_source import {reader}
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = (
    "tidelog.client",
    "tidelog.protocol",
    "tidelog.coordinator.group",
    "tidelog.coordinator.transaction",
    "tidelog.bucket.views.states",
    "boto3",
    "obstore",
    "fsspec",
    "pyarrow.compute",
    "pyarrow.dataset",
)
"""Sinks, states, atomic snapshots or stores of another kind need these modules; a plain read does
not."""


@pytest.mark.parametrize("reader", ["batch", "stream"])
def test_planning_a_read_loads_neither_the_protocol_nor_the_coordinators(reader: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANNED.format(reader=reader)],
        capture_output=True,
        text=True,
        check=True,
        timeout=IMPORT_SECONDS_MAX,
    )
    loaded = json.loads(done.stdout)
    assert f"tidelog.spark_source.{reader}" in loaded
    assert [each for each in HEAVY if each in loaded] == []
