"""Work away from the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from tidelog.offload import ThreadOffload


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


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
