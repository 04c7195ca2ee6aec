"""Fills folders once for several processes: downloads and builds."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """True if the caller must fill the folder, which then exists and is empty.

    Concurrent callers, in this process or another, wait until it is filled and get False. If
    filling fails or the process dies, the next caller fills the folder again.
    """
    complete = folder / "complete"
    if complete.exists():
        yield False
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The lock lies beside the folder, which is emptied, and ends with the process that holds it.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield True
        complete.touch()
