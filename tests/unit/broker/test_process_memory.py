"""Allocator settings, in processes of their own: they cannot be taken back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

GROW_AND_SHRINK = """
import resource
from tidelog.broker.process_memory import tune_allocator

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


@pytest.mark.parametrize(("chosen", "expected"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_uses_the_heap_of_all_others_unless_another_is_chosen(
    chosen: str | None, expected: str
) -> None:
    variable = "ARROW_DEFAULT_MEMORY_POOL"
    environment = {name: value for name, value in os.environ.items() if name != variable}
    if chosen is not None:
        environment[variable] = chosen

    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.splitlines()[-1] == expected
