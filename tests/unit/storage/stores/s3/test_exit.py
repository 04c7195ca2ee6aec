"""The end of a process that used the store."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
import obstore
from obstore.store import MemoryStore
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import S3Address

S3Store(S3Address("bucket", access_key_id="id", secret_access_key="key"))
store = MemoryStore()

async def put(number):
    await obstore.put_async(store, str(number), b"x")

async def story():
    puts = [asyncio.ensure_future(put(number)) for number in range(256)]
    await asyncio.wait(puts, return_when=asyncio.FIRST_COMPLETED)

asyncio.new_event_loop().run_until_complete(story())
"""
PROCESSES = 8


def test_a_process_that_ends_right_after_a_request_is_not_aborted() -> None:
    """Without the pause half of the processes are."""
    ends = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False).returncode
        for _ in range(PROCESSES)
    ]
    assert ends == [0] * PROCESSES
