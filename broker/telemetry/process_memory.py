"""Tunes the memory of the server's process: glibc's allocator and Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc
import logging
from typing import Final

import pyarrow as pa

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

MMAP_BYTES_MIN: Final = 32 * 1024 * 1024
"""The maximum of glibc. Smaller blocks come from the heap, which reuses its pages.

Mapped afresh, each page of each request and WAL object would be faulted in and cleared.
"""
TRIM_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the heap's end beyond this goes back to the system."""


def tune_allocator() -> None:
    """Reuse large blocks, from one heap. Call this before threads are started.

    One arena suffices: Python's threads take turns, and one can use the blocks that another frees.
    Arrow's buffers use it too. Arrow's own allocator returns free pages within milliseconds, and
    the next read or roll would have to clear new ones. Without glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, MMAP_BYTES_MIN),
        (_M_TRIM_THRESHOLD, TRIM_BYTES),
    ):
        if not mallopt(parameter, value):
            logger.info(
                "the allocator keeps its default", extra={"parameter": parameter, "value": value}
            )
    pa.set_memory_pool(pa.system_memory_pool())


GARBAGE_OBJECTS: Final = 10_000
"""New objects before the collector looks for cycles among them.

With Python's 700 it would look every few requests. The objects that serve a request form no cycles,
so a higher number holds back no records.
"""


def settle_garbage() -> None:
    """Exempt all present objects from later garbage collections, and make those rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])
