"""The command `tidelog`."""

from __future__ import annotations

import ctypes
import os

from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints

__all__ = ["main"]


def main(crash_points: CrashPoints = NO_CRASH_POINTS) -> None:
    """`crash_points`: for tests."""
    _share_heap()
    from tidelog.cli.root import run

    run(crash_points)


def _share_heap() -> None:
    """Make Arrow's C++ use glibc's heap too.

    Arrow reads this setting once, at its import. `tune_allocator` covers only memory that Python
    requests from Arrow. Pages and encoders of a Parquet file would otherwise grow a second heap in
    the first roll of a process.
    """
    if hasattr(ctypes.CDLL(None), "mallopt"):
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
