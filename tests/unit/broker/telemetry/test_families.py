"""Counts that declare their metric families."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.broker.one_broker import World, run
from tidelog.broker.telemetry.families import CountsCollector, StoreCollector
from tidelog.clock import SystemClock
from tidelog.counts import Durations, counter, gauge, histogram, timestamp
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import StoreStatistics


@dataclass(slots=True)
class Tides:
    high: int = counter("tides_high", "High tides.")
    level: float = gauge("tides_level", "The level now.", new=float)
    by_port: dict[str, int] = counter("tides_by_port", "Tides at ports.", "port", new=dict)
    seconds: Durations = histogram("tides_seconds", "How long they last.", (1.0, 2.0))
    turned_at: float | None = timestamp("tides_turn_timestamp_seconds", "When the tide turned.")
    not_told: int = 0


def samples(tides: Tides) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in CountsCollector(tides).collect()
        for sample in family.samples
    }


def test_a_declared_field_is_reported_under_the_name_it_declares() -> None:
    tides = Tides()
    tides.high += 2
    tides.level = 1.5
    tides.by_port["Husum"] = 3
    tides.seconds.observe(1.5)
    tides.not_told = 9
    assert samples(tides) == {
        ("tides_high_total",): 2,
        ("tides_level",): 1.5,
        ("tides_by_port_total", "Husum"): 3,
        ("tides_seconds_bucket", "1.0"): 0,
        ("tides_seconds_bucket", "2.0"): 1,
        ("tides_seconds_bucket", "+Inf"): 1,
        ("tides_seconds_count",): 1,
        ("tides_seconds_sum",): 1.5,
    }
    docs = {family.name: family.documentation for family in CountsCollector(tides).collect()}
    assert docs["tides_level"] == "The level now."


def test_a_time_has_no_series_before_it_is_set() -> None:
    tides = Tides()
    assert ("tides_turn_timestamp_seconds",) not in samples(tides)
    tides.turned_at = 1_750_000_000.5
    assert samples(tides)[("tides_turn_timestamp_seconds",)] == 1_750_000_000.5


def test_the_times_of_the_last_successes() -> None:
    async def told() -> dict[str, float | None]:
        async with World(MemoryStore(SystemClock())).broker() as one:
            registry = one.broker.metrics.registry
            await one.broker.writes.checkpointer.checkpoint()
            return {
                name: registry.get_sample_value(f"tidelog_{name}_last_success_timestamp_seconds")
                for name in ("lease", "metadata_read", "wal_checkpoint", "roll", "collection")
            }

    before = time.time()
    found = run(told)
    # The broker has neither rolled nor collected yet.
    assert found.keys() - {n for n, at in found.items() if at} == {"roll", "collection"}
    assert all(abs(at - before) < 600 for at in found.values() if at)


def test_an_undeclared_count_is_refused() -> None:
    with pytest.raises(AttributeError):
        Tides().neap = 1  # type: ignore[attr-defined]


def test_the_documents_tell_of_every_family_and_of_no_other() -> None:
    page = Path("docs/OPERATIONS.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `tidelog_")]
    told = {
        name.removesuffix("_total")
        for row in rows
        for name in re.findall(r"tidelog_\w+", row.split("|")[1])
    }

    async def reported() -> set[str]:
        async with World(MemoryStore(SystemClock())).broker() as one:
            registry = one.broker.metrics.registry
            registry.register(StoreCollector(StoreStatistics()))
            return {family.name for family in registry.collect()}

    assert run(reported) == told
