"""The demo's end: its topics as tables, read by DuckDB from the bucket without a broker.

All records are flushed into the topics' tables, the brokers are stopped, and fsck proves the bucket
consistent. Then DuckDB counts: every flight must be once in each of its tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import duckdb_extension_delta

FLUSH_SECONDS_MAX = 300
_COUNT = """
select count(*), count(distinct row)
from (
    select list_filter(headers, header -> header.key = 'row')[1].value as row
    from delta_scan('{table}')
)
"""


@dataclass(slots=True)
class Tables:
    """The findings in the tables."""

    flights: dict[str, int]
    """The expected number of rows of each topic's table."""
    rows: dict[str, int] = field(default_factory=dict)
    distinct: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    consistent: bool = False
    verdict: str = ""

    @property
    def right(self) -> bool:
        return self.consistent and self.rows == self.distinct == self.flights


def flush(bootstrap: str, topics: Mapping[str, int]) -> dict[str, str]:
    """Flush all topics into their tables; return their ids, which the bucket uses as names."""
    ids = {}
    for topic in topics:
        _tidelog("topics", "flush", topic, "--bootstrap", bootstrap)
        described = _tidelog("topics", "describe", topic, "--json", "--bootstrap", bootstrap)
        ids[topic] = json.loads(described)["id"]
    return ids


def read(root: Path, ids: Mapping[str, str], tables: Tables) -> None:
    """Count the tables' rows, and prove the bucket consistent."""
    [extension] = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.*")
    with duckdb.connect() as connection:
        connection.execute(f"load '{extension}'")
        for topic, topic_id in ids.items():
            table = root / "topics" / topic_id
            found = connection.execute(_COUNT.format(table=table)).fetchone()
            assert found is not None
            tables.rows[topic], tables.distinct[topic] = found
            tables.files[topic] = len(list(table.rglob("*.parquet")))
    tables.verdict = _tidelog("fsck", "--store", root.as_uri()).strip().splitlines()[-1]
    tables.consistent = True


def report(tables: Tables) -> None:
    """Print the findings."""
    print("\nThe same topics as tables, read by DuckDB with the brokers stopped")
    for topic, expected in tables.flights.items():
        print(
            f"  {topic}: {tables.rows.get(topic, 0):,} rows of {expected:,},"
            f" {tables.distinct.get(topic, 0):,} different flights,"
            f" {tables.files.get(topic, 0)} files"
        )
    print(f"  fsck: {tables.verdict}")


def _tidelog(*words: str) -> str:
    """The output of a command. CalledProcessError, after its messages, if it fails."""
    command = [sys.executable, "-m", "tidelog.cli", *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=FLUSH_SECONDS_MAX
    )
    return done.stdout
