"""Work in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from tests.process_table import children_with
from tidelog.cli.worker import COMMAND
from tidelog.clock import SystemClock
from tidelog.errors import CorruptObject
from tidelog.workers.offload import WorkerLost
from tidelog.workers.process_channel import STEP_BYTES, Channel
from tidelog.workers.process_offload import ProcessOffload


@pytest.fixture
def offload() -> Iterator[ProcessOffload]:
    offload = ProcessOffload(COMMAND, SystemClock())
    yield offload
    asyncio.run(offload.close())


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a story with either loop: uvloop changes sockets that it watches."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(story)

    return run


def ended(pid: int) -> bool:
    """Whether our child process has ended and has been waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other code brings about."""
    for _ in range(10_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come about")


def test_work_is_done_elsewhere_and_its_errors_come_back(run: Run, offload: ProcessOffload) -> None:
    async def story() -> None:
        assert await offload.run(max, 3, 5) == 5
        pid = await offload.run(os.getpid)
        assert pid != os.getpid()
        with pytest.raises(ValueError, match="invalid literal") as caught:
            await offload.run(int, "five")
        assert any("in the worker process" in note for note in caught.value.__notes__)
        assert await offload.run(os.getpid) == pid

    run(story())


def test_buffers_of_any_number_and_size_arrive_as_they_were(
    run: Run, offload: ProcessOffload
) -> None:
    views = [memoryview(bytes([n % 256]) * n) for n in range(1500)]
    large = memoryview(os.urandom(5_000_000))
    numbers = np.arange(1000)

    async def story() -> None:
        found = await offload.run(list, [*views, large])
        assert found == [*views, large]
        assert all(type(each) is memoryview for each in found)
        assert await offload.run(bytes.join, b"-", [large, large]) == b"-".join([large, large])
        assert (await offload.run(np.flip, numbers) == np.flip(numbers)).all()

    run(story())


def test_a_placed_object_stays_until_its_release(run: Run, offload: ProcessOffload) -> None:
    async def story() -> None:
        placed = await offload.place(list[int], (1, 2))
        other = await offload.place(list[int])
        await placed.run(list.append, 3)
        assert await placed.run(list.copy) == [1, 2, 3]
        assert await other.run(list.copy) == []
        placed.release()
        with pytest.raises(WorkerLost):
            await placed.run(list.copy)
        assert await other.run(list.copy) == []

    run(story())


def test_the_death_of_the_process_is_told_and_the_next_work_is_done(
    run: Run,
    offload: ProcessOffload,
) -> None:
    async def story() -> None:
        placed = await offload.place(list[int], (1, 2))
        pid = await offload.run(os.getpid)
        with pytest.raises(WorkerLost, match="exit code -9"):
            await offload.run(os.kill, pid, signal.SIGKILL)
        assert ended(pid)
        with pytest.raises(WorkerLost, match="the work restarts"):
            await placed.run(list.copy)
        assert await offload.run(os.getpid) != pid
        # The new process does not have the object, even if it has placed another one.
        again = await offload.place(list[int], (5,))
        with pytest.raises(WorkerLost):
            await placed.run(list.copy)
        placed.release()
        assert await again.run(list.copy) == [5]

    run(story())


def test_an_idle_worker_may_die(run: Run, offload: ProcessOffload) -> None:
    async def story() -> None:
        pid = await offload.run(os.getpid)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it is dead already
        assert await offload.run(os.getpid) != pid

    run(story())


def test_an_unpicklable_call_is_the_callers_error(run: Run, offload: ProcessOffload) -> None:
    async def story() -> None:
        pid = await offload.run(os.getpid)
        with pytest.raises(Exception, match="pickle"):
            await offload.run(lambda: 1)
        with pytest.raises(Exception, match="pickle"):
            await offload.run(open, os.devnull)
        assert await offload.run(os.getpid) == pid

    run(story())


def test_an_object_that_is_corrupt_is_named_by_the_same_error(
    run: Run, offload: ProcessOffload
) -> None:
    error = CorruptObject("wal/1", "it is cut off")

    async def story() -> None:
        (found,) = await offload.run(list, (error,))
        assert type(found) is CorruptObject
        assert (found.key, found.why, str(found)) == (error.key, error.why, str(error))

    run(story())


def test_a_process_that_cannot_start_is_named_by_the_error(run: Run) -> None:
    absent, failing = (
        ProcessOffload(["/no/such/program"], SystemClock()),
        ProcessOffload([sys.executable, "-c", ""], SystemClock()),
    )

    async def story() -> None:
        with pytest.raises(WorkerLost, match="/no/such/program"):
            await absent.run(max, 1, 2)
        with pytest.raises(WorkerLost, match="exit code 0"):
            await failing.run(max, 1, 2)
        await absent.close()
        await failing.close()

    run(story())


def test_the_worker_starts_before_there_is_work(run: Run, offload: ProcessOffload) -> None:
    run(until(lambda: bool(children_with(os.getpid(), "tidelog.cli.worker"))))


def test_a_cancelled_caller_leaves_nothing_behind(run: Run, offload: ProcessOffload) -> None:
    """Each socket is a descriptor in the process."""

    async def descriptors() -> int:
        return len(await offload.run(os.listdir, "/proc/self/fd"))

    async def story() -> None:
        await descriptors()
        # The process has answered once, which takes one descriptor for good.
        before = await descriptors()
        keeper = await offload.place(socket.socket)
        tasks = [asyncio.ensure_future(offload.place(socket.socket)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await descriptors() == before + 1
        keeper.release()
        assert await descriptors() == before

    run(story())


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe whose reader waits for its writer."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


async def opened(pipe: Path) -> int:
    """The writing end, opened when the process has begun to read."""
    found: list[int] = []

    def is_read() -> bool:
        with contextlib.suppress(OSError):
            found.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(found)

    await until(is_read)
    return found[0]


def test_closing_ends_the_process_and_fails_waiting_calls(
    run: Run, offload: ProcessOffload, pipe: Path
) -> None:
    async def story() -> None:
        pid = await offload.run(os.getpid)
        running = asyncio.ensure_future(offload.run(Path.read_bytes, pipe))
        end = await opened(pipe)
        waiting = [asyncio.ensure_future(offload.run(os.getpid)) for _ in range(3)]
        closing = asyncio.ensure_future(offload.close())
        os.write(end, b"done")
        os.close(end)
        assert await running == b"done"
        for each in waiting:
            with pytest.raises(WorkerLost, match="is shut down"):
                await each
        await closing
        assert ended(pid)

    run(story())


def test_closing_does_not_wait_for_ever_for_a_process_that_is_stopped(
    run: Run, offload: ProcessOffload, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.workers.process_offload._END_SECONDS_MAX", 0.1)

    async def story() -> None:
        pid = await offload.run(os.getpid)
        asking = asyncio.ensure_future(offload.run(Path.read_bytes, pipe))
        end = await opened(pipe)
        os.kill(pid, signal.SIGSTOP)
        os.close(end)
        await offload.close()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert ended(pid)

    run(story())


def test_an_unread_answer_is_not_taken_for_another(
    run: Run, offload: ProcessOffload, pipe: Path
) -> None:
    """This happens when all running tasks are cancelled."""

    async def story() -> None:
        pid = await offload.run(os.getpid)
        placed = await offload.place(list[int])
        asking = asyncio.ensure_future(offload.run(Path.read_bytes, pipe))
        end = await opened(pipe)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        os.close(end)
        assert await offload.run(max, 3, 5) == 5
        assert await offload.run(os.getpid) != pid
        assert ended(pid)
        with pytest.raises(WorkerLost):
            await placed.run(list.copy)

    run(story())


def test_the_loop_goes_on_while_much_is_said(run: Run, offload: ProcessOffload) -> None:
    """Other waiting tasks run between two steps of a message."""
    turns: list[int] = []

    async def others() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def story() -> None:
        task = asyncio.ensure_future(others())
        send = Channel.send

        def counting(channel: Channel, parts: Sequence[memoryview]) -> Iterator[None]:
            before = len(turns)
            yield from send(channel, parts)
            steps.append(len(turns) - before)

        steps: list[int] = []
        parts = [memoryview(bytes(STEP_BYTES // 4)) for _ in range(32)]
        # Now the shared memory is as large as the messages need.
        await offload.run(len, parts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Channel, "send", counting)
            await offload.run(len, parts)
        task.cancel()
        assert steps[0] >= 8

    run(story())
