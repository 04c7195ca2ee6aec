"""The command `tidelog`."""

from __future__ import annotations

import ctypes
import os

from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints

__all__ = ["main"]


def main(crash_points: CrashPoints = NO_CRASH_POINTS) -> None:
    """Run the command line; never returns. `crash_points`: for tests."""
    _share_heap()
    from tidelog.cli.root import run

    run(crash_points)


def _share_heap() -> None:
    """Have Arrow's C++ take its memory from glibc's heap too. It looks at this once, when it is
    imported: `tune_allocator` has only what Python asks Arrow for come from there. Pages and
    encoders of a Parquet file would make a second heap grow in the first roll of a process.
    """
    if hasattr(ctypes.CDLL(None), "mallopt"):
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
