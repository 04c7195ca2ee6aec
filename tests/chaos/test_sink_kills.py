"""kill -9 of driver, Python workers and broker while an ETL streams. Each input is in both topics
once, at every moment and in the end. The bucket is left consistent and clean."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.driver_process import send, until
from tests.chaos.world import SECONDS_MAX, SETTINGS, World, world_in
from tidelog.crash_points import CrashPoint

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

KILLS_MIN = 20
GRACE_MS = 62_000
"""The shortest accepted retention of staged objects."""
COLLECTING = {
    **SETTINGS,
    # Decision, markers and completion have slots of their own, so the broker may die between two.
    "wal.object.max.bytes": 1,
    "wal.uploads.in.flight.max": 1,
    "roll.age.ms": 20_000,
    "roll.min.bytes": 0,
    "log.collect.interval.ms": 1_000,
    "log.collect.tables.interval.ms": 5_000,
    "log.delete.grace.ms": GRACE_MS,
}
"""Adopted batches are rolled and rolled ones deleted, while processes die."""
BETWEEN_THE_COMMITS = (CrashPoint.SINK_COMMITTED, CrashPoint.SINK_FOUND)
"""Points at which a batch is committed in the bucket, but not in Spark's commit log."""


@dataclass
class Killer:
    """Kills processes, and counts the kills."""

    world: World
    chance: random.Random
    kills: Counter[str]

    def driver(self, point: CrashPoint, *, and_broker: bool = False) -> None:
        """Kill the driver and all its processes, when one of them reaches this point."""
        self.world.orders.hold(point.value)
        note = self.world.held(point.value)
        if point in BETWEEN_THE_COMMITS:
            assert not self.world.is_in_commit_log(note.batch)
            self.kills["between the commits"] += 1
        self.world.driver.kill()
        self.kills["driver"] += 1
        if and_broker:
            self.world.kill_broker()
            self.kills["broker"] += 1
            self.world.audit()
            self.world.start_broker()
        self.world.audit()
        self.world.start_driver()

    def call(self, point: CrashPoint) -> None:
        """Kill the process of a commit call alone. Its driver cannot go on without it."""
        self.world.orders.hold(point.value)
        send(self.world.held(point.value).pid, signal.SIGKILL)
        self.kills["commit call"] += 1
        assert self.world.await_end(self.world.driver) != 0
        self.world.start_driver()

    def staging_worker(self) -> None:
        """Kill an executor's Python worker when its task has staged. Spark runs the task again."""
        point = CrashPoint.SINK_STAGED.value
        self.world.orders.hold(point)
        note = self.world.held(point)
        send(note.pid, signal.SIGKILL)
        self.kills["worker"] += 1
        self.world.await_moment(CrashPoint.SINK_COMMITTED.value, note.batch)

    def any_worker(self) -> None:
        """Kill one of the executor's Python workers at a random moment."""
        self._await_batches(1)
        workers: list[int] = []

        def found() -> bool:
            workers[:] = self.world.driver.workers()
            return bool(workers)

        self.world.until(found, "there are no Python workers")
        send(self.chance.choice(workers), signal.SIGKILL)
        self.kills["worker"] += 1
        self._await_batches(1)

    def broker(self) -> None:
        """Kill the broker at a random moment."""
        self._await_batches(1)
        self.world.kill_broker()
        self.kills["broker"] += 1
        self.world.audit()
        self.world.start_broker()
        self._await_batches(1)

    def broker_at(self, point: str) -> None:
        """Kill the broker at once, and its successor when it reaches a crash point."""
        self.world.kill_broker()
        self.world.start_broker(point)
        self.world.await_broker_death()
        self.kills["broker"] += 2
        self.world.audit()
        self.world.start_broker()
        self._await_batches(1)

    def _await_batches(self, count: int) -> None:
        """Wait for this many more batches, and then for up to a batch's time."""
        committed = CrashPoint.SINK_COMMITTED.value
        self.world.await_moment(committed, count=self.world.orders.count(committed) + count)
        self.world.feed.rest(self.chance.uniform(0, 0.5))


def test_each_input_is_in_both_topics_once_whichever_process_is_killed(tmp_path: Path) -> None:
    with world_in(tmp_path, COLLECTING) as world:
        killer = Killer(world, random.Random("kills under Spark"), Counter())
        world.abort_some()
        world.feed.start()
        world.start_driver()
        for kill in plan(killer):
            kill()
            world.audit()
        world.feed.stop()
        world.abort_some()
        world.driver.kill()
        killer.kills["driver"] += 1
        in_spark = world.derive_and_read()
        assert in_spark == world.check_as_consumer()
        world.kill_broker()
        killer.kills["broker"] += 1
        print(
            f"{sum_of(killer.kills)} kills {dict(killer.kills)}, {len(world.drivers)} drivers,"
            f" {world.gave_up} that gave up, {world.feed.sent} inputs, {len(in_spark)} rows"
        )
        assert sum_of(killer.kills) >= KILLS_MIN
        assert min(killer.kills[each] for each in ("driver", "worker", "broker")) >= 5
        assert killer.kills["between the commits"] >= 3
        world.check_consistency()
        check_that_leftovers_go(world)
        assert [row[3:] for row in world.check_as_consumer()] == [row[3:] for row in in_spark]
        world.check_consistency()


def plan(killer: Killer) -> list[Callable[[], None]]:
    """The kills, in order. A kill that repeats the point of the one before meets a batch that is
    repeated already."""
    return [
        killer.staging_worker,
        lambda: killer.driver(CrashPoint.SINK_COMMITTED),
        lambda: killer.driver(CrashPoint.SINK_FOUND),
        killer.broker,
        killer.any_worker,
        lambda: killer.broker_at("prepare durable:1"),
        lambda: killer.driver(CrashPoint.SINK_NUMBERED),
        killer.staging_worker,
        lambda: killer.broker_at("between markers:2"),
        killer.any_worker,
        lambda: killer.driver(CrashPoint.SINK_FENCED),
        lambda: killer.broker_at("markers durable:1"),
        lambda: killer.call(CrashPoint.SINK_ADOPTED),
        killer.any_worker,
        lambda: killer.driver(CrashPoint.SINK_COMMITTED, and_broker=True),
        lambda: killer.broker_at(f"slot upload:{killer.chance.randrange(4, 20)}"),
        lambda: killer.driver(CrashPoint.SINK_STAGED),
        killer.broker,
        killer.staging_worker,
        lambda: killer.driver(CrashPoint.SINK_COMMITTED),
    ]


def sum_of(kills: Counter[str]) -> int:
    """The number of killed processes. Those killed between the commits are drivers, and count
    once."""
    return kills.total() - kills["between the commits"]


def check_that_leftovers_go(world: World) -> None:
    """Dead tasks and repeated batches have left staged objects that no batch has adopted. When the
    adopted records are in the tables too, all staged objects are deleted."""
    failed = {
        note.batch
        for note in world.orders.notes()
        if world.orders.count(CrashPoint.SINK_STAGED.value, note.batch) > 2
    }
    assert failed, "no batch was staged twice"
    assert world.count_staged() > 0
    world.start_broker(staged_retention_ms=1_000)
    world.roll()
    until(
        lambda: world.count_staged() == 0,
        lambda: f"{world.count_staged()} staged objects are left",
        SECONDS_MAX,
    )
