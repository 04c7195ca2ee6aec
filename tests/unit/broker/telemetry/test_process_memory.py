"""The server's allocator settings, tried in separate processes, since a process cannot undo
them."""

from __future__ import annotations

import os
import subprocess
import sys

GROW_AND_SHRINK = """
import resource
from tidelog.broker.telemetry.process_memory import tune_allocator

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def take_and_free():
    block = bytearray(8 << 20)
    del block

tune_allocator()
take_and_free()
before = faults()
for _ in range(20):
    take_and_free()
print(faults() - before)
"""


def test_a_block_as_large_as_a_wal_object_is_used_again_without_new_pages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROW_AND_SHRINK], capture_output=True, text=True, check=True
    )

    # 20 fresh blocks would fault in 40,000 pages.
    assert int(done.stdout) < 2_000


def test_arrow_takes_its_buffers_from_the_same_heap() -> None:
    script = """
import pyarrow as pa
from tidelog.broker.telemetry.process_memory import tune_allocator

tune_allocator()
held = pa.allocate_buffer(8 << 20)
assert pa.system_memory_pool().bytes_allocated() >= 8 << 20
assert pa.total_allocated_bytes() >= 8 << 20
"""
    subprocess.run([sys.executable, "-c", script], check=True)


COMMAND = """
import sys
from tidelog.cli import main

sys.argv = ["tidelog", "server", "--help"]
try:
    main()
except SystemExit:
    pass
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


def test_arrow_uses_the_system_allocator_in_the_server_command() -> None:
    variable = "ARROW_DEFAULT_MEMORY_POOL"
    environment = {name: value for name, value in os.environ.items() if name != variable}

    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.splitlines()[-1] == "system"
