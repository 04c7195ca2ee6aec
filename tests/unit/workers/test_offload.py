"""Work away from the event loop."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys
import threading

import pytest

from tidelog.workers.offload import ThreadOffload


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def policy() -> int:
    return os.sched_getscheduler(threading.get_native_id())


def turn_nanoseconds() -> int:
    """The length of the thread's turn, by sched_getattr. 0 if Linux gives no turns to single
    threads."""
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    found = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(number, 0, found, len(found), 0) == 0
    return int(struct.unpack_from("=Q", found, 24)[0])


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no turns of their own")
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"),
    reason="the number of Linux's call is not known for it",
)
def test_background_work_gives_its_core_to_waking_threads() -> None:
    """The thread with shorter turns goes first."""
    if not turn_nanoseconds():
        pytest.skip("this Linux has one length of turns for all")
    patient, prompt = ThreadOffload(niceness=5), ThreadOffload()

    async def story() -> tuple[int, int]:
        return await patient.run(turn_nanoseconds), await prompt.run(turn_nanoseconds)

    try:
        patient_turn, prompt_turn = asyncio.run(story())
        assert patient_turn > 10 * prompt_turn
        assert prompt_turn == turn_nanoseconds()
    finally:
        patient.close()
        prompt.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_work_that_may_wait_takes_no_core_from_others_when_it_wakes_up() -> None:
    patient, prompt = ThreadOffload(niceness=5), ThreadOffload()

    async def story() -> tuple[int, int]:
        return await patient.run(policy), await prompt.run(policy)

    try:
        assert asyncio.run(story()) == (os.SCHED_BATCH, os.SCHED_OTHER)
        assert policy() == os.SCHED_OTHER
    finally:
        patient.close()
        prompt.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_work_is_done_where_the_system_refuses_a_lower_priority(
    error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sandbox forbids it, or the C library only has a stub, as musl does."""

    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    patient = ThreadOffload(niceness=5)
    try:
        assert asyncio.run(patient.run(max, 1, 2)) == 2
        assert "cannot stand back" in caplog.text
    finally:
        patient.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_work_that_may_wait_stands_back_and_nothing_else_does() -> None:
    before = niceness()
    patient, prompt = ThreadOffload(2, niceness=5), ThreadOffload()

    async def story() -> tuple[int, int]:
        return await patient.run(niceness), await prompt.run(niceness)

    try:
        assert asyncio.run(story()) == (min(19, before + 5), before)
        assert niceness() == before
    finally:
        patient.close()
        prompt.close()
