"""Folders that are filled once, whoever comes first: downloads and builds that processes share."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """Whether the caller is to fill the folder, which is then there and empty.

    Whoever else asks meanwhile, in this process or another, waits until the caller is done, and has
    nothing to do then. A folder whose filling failed, or whose process died, is filled anew.
    """
    complete = folder / "complete"
    if complete.exists():
        yield False
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The lock is beside the folder, which is emptied, and ends with the process that holds it.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield True
        complete.touch()
