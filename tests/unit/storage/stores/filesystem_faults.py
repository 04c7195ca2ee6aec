"""Files of a store, and system calls that fail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.object_store import RESERVED_DIRECTORY
from tidelog.storage.stores.filesystem import FilesystemStore

T = TypeVar("T")


def run(root: Path, story: Callable[[FilesystemStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = FilesystemStore(root, SystemClock(), SystemEntropy())
        try:
            return await story(store)
        finally:
            await store.close()

    return asyncio.run(main())


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def temporary_files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / RESERVED_DIRECTORY / "temporary").iterdir())
