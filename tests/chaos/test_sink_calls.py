"""Failures that an exactly-once sink must survive, each caused for real: a task that stages twice,
a repeated commit, two commits at once, and a task or a driver that wakes up in the next batch."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.chaos.driver_process import is_stopped, send
from tests.chaos.etl import TOPICS
from tests.chaos.moments import CALLED, Note
from tests.chaos.world import World, world_in
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.crash_points import CrashPoint

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

STAGED = CrashPoint.SINK_STAGED.value
NUMBERED = CrashPoint.SINK_NUMBERED.value
COMMITTED = CrashPoint.SINK_COMMITTED.value
FOUND = CrashPoint.SINK_FOUND.value
REFUSED = {ProducerFenced.__name__, MustAbort.__name__}
RECORDS = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in(tmp_path_factory.mktemp("calls")) as world:
        world.start_driver()
        yield world
        world.check_consistency()


@pytest.fixture
def world(running: World) -> World:
    """One ETL for all of these tests, idle, which has derived all its inputs."""
    # Aborted records come first: behind the others they could become an empty batch at any time.
    running.abort_some()
    running.feed.send(RECORDS)
    running.await_idle()
    return running


def noted_by(world: World, note: Note) -> set[str]:
    """All moments that a process has noted in a batch."""
    return {each.moment for each in world.orders.notes() if each[1:] == note[1:]}


def test_a_task_that_dies_when_it_has_staged_is_run_again_and_counts_once(world: World) -> None:
    before = {each.staged_id for each in world.staged()}
    drivers = len(world.drivers)
    world.orders.hold(STAGED)
    world.feed.send(RECORDS)
    task = world.held(STAGED)
    send(task.pid, signal.SIGKILL)
    world.await_all_derived()
    assert len(world.drivers) == drivers
    assert not world.driver.is_dead()
    attempts = [each for each in world.staged() if each.purpose.batch_id == task.batch]
    assert len(attempts) == world.orders.count(STAGED, task.batch) >= 2
    staged = [each for each in world.staged() if each.staged_id not in before]
    # The rows of the dead attempt are in the bucket a second time, for both topics.
    assert sum(each.record_count for each in staged) > len(TOPICS) * RECORDS
    world.check_as_consumer()


def test_a_commit_is_repeated_when_the_driver_dies_before_spark_logs_the_batch(
    world: World,
) -> None:
    before = world.audit()
    world.orders.hold(COMMITTED)
    world.feed.send(RECORDS)
    call = world.held(COMMITTED)
    # All readers see the batch, but Spark does not know that it is committed.
    assert world.audit() > before
    world.driver.kill()
    assert not world.is_in_commit_log(call.batch)
    world.start_driver()
    world.await_moment(FOUND, call.batch)
    world.until(lambda: world.is_in_commit_log(call.batch), "Spark does not note the batch")
    world.await_all_derived()
    assert world.orders.count(COMMITTED, call.batch) == 1
    world.check_as_consumer()


def test_one_of_two_simultaneous_calls_for_a_batch_takes_effect(world: World) -> None:
    world.orders.hold(CALLED)
    world.feed.send(RECORDS)
    one = world.held(CALLED)
    old = world.driver
    world.start_driver()
    world.orders.hold(CALLED, one.batch)
    other = world.held(CALLED)
    assert other.batch == one.batch
    assert other.pid != one.pid
    assert is_stopped(one.pid)
    calls = (one, other)
    for call in calls:
        send(call.pid, signal.SIGCONT)
    ends = REFUSED | {COMMITTED, FOUND}
    world.until(lambda: all(noted_by(world, call) & ends for call in calls), "a call does not end")
    assert world.orders.count(COMMITTED, one.batch) <= 1
    old.kill()
    world.await_all_derived()
    assert world.orders.count(COMMITTED, one.batch) == 1
    world.check_as_consumer()


def test_a_call_that_wakes_up_in_the_next_batch_is_refused_and_harms_nothing(
    world: World,
) -> None:
    world.orders.hold(NUMBERED)
    world.feed.send(RECORDS)
    zombie = world.held(NUMBERED)
    old = world.driver
    old.pause()
    world.start_driver()
    world.await_all_derived()
    seen = world.audit()
    world.orders.hold(NUMBERED, zombie.batch + 1)
    world.feed.send(RECORDS)
    call = world.held(NUMBERED)
    assert call.batch > zombie.batch
    assert is_stopped(zombie.pid)
    # The present batch has all its records, but no end. Now the end of the previous batch arrives.
    send(zombie.pid, signal.SIGCONT)
    world.until(lambda: bool(noted_by(world, zombie) & REFUSED), "the zombie is not refused")
    assert noted_by(world, zombie) >= {NUMBERED}
    assert not noted_by(world, zombie) & {COMMITTED, FOUND}
    assert world.audit() == seen
    send(call.pid, signal.SIGCONT)
    world.await_all_derived()
    assert COMMITTED in noted_by(world, call)
    old.resume()
    assert world.await_end(old) != 0
    assert world.orders.count(COMMITTED, zombie.batch) == 1
    world.check_as_consumer()


def test_a_driver_that_wakes_up_behind_another_is_refused_and_doubles_nothing(
    world: World,
) -> None:
    world.orders.hold(STAGED)
    world.feed.send(RECORDS)
    task = world.held(STAGED)
    zombie = world.driver
    zombie.pause()
    world.start_driver()
    world.await_all_derived()
    world.feed.send(RECORDS)
    world.await_all_derived()
    zombie.resume()
    # The task, the commit call and the commit log of the resumed process continue.
    assert world.await_end(zombie) != 0
    ends = {
        each.moment: each.driver
        for each in world.orders.notes()
        if each.batch == task.batch and each.moment in (COMMITTED, FOUND)
    }
    assert ends == {COMMITTED: world.driver.process.pid, FOUND: zombie.process.pid}
    assert world.orders.count(COMMITTED, task.batch) == 1
    assert world.is_in_commit_log(task.batch)
    world.feed.send(RECORDS)
    world.await_all_derived()
    world.check_as_consumer()
