"""How the server's process holds memory: glibc's allocator and Python's garbage collector."""

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
"""The most that glibc accepts. Smaller blocks come from the heap, whose pages are used again;
mapped afresh, each page of each request and WAL object would be faulted in and cleared."""
TRIM_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the heap's end beyond this goes back to the system."""


def tune_allocator() -> None:
    """Let large blocks be used again, from one heap. Call it before threads are started.

    One arena: Python's threads take turns anyway, and what one frees another can use. Arrow's
    buffers come from it too: its own allocator gives free pages back within milliseconds, and new
    ones have to be cleared for what is read or rolled next. Without glibc nothing is changed.
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
"""So many new objects before circles are looked for among them; Python's own 700 let it look at
every few requests. What serves a request is no circle, so this holds back no records."""


def settle_garbage() -> None:
    """What lives now lives on: let no later garbage collection look at it again, and have few."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])
