"""`tidelog server` on a folder whose requests fail or wait, as the file FAULTS_FILE says at that
moment.

Each line is a fault: `put wal/* fail`, or `put wal/* 3` for a request that takes 3 s longer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tidelog.cli import main
from tidelog.storage.object_store import StoreNotApplied
from tidelog.storage.stores.filesystem import FilesystemStore

FAULTS_FILE: Final = "FAULTS_FILE"


def effects(request: str, key: str) -> list[str]:
    """The effects of the present faults on a request."""
    lines = [line.split() for line in Path(os.environ[FAULTS_FILE]).read_text().splitlines()]
    return [effect for of, keys, effect in lines if of == request and fnmatchcase(key, keys)]


async def meet_fault(request: str, key: str) -> None:
    """Wait or fail if FAULTS_FILE has a fault for this request. Raises StoreNotApplied."""
    for effect in effects(request, key):
        if effect == "fail":
            raise StoreNotApplied(key, f"made fault of {request}")
        await asyncio.sleep(float(effect))


def _faulty(name: str, request: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    async def meets_faults(store: Any, *keys: Any, **options: Any) -> Any:
        await meet_fault(name, str(keys[0]) if keys else "")
        return await request(store, *keys, **options)

    return meets_faults


def make_faulty() -> None:
    """All requests of this process to folders meet the faults from now on."""
    for name in ("get", "head", "put", "delete"):
        setattr(FilesystemStore, name, _faulty(name, getattr(FilesystemStore, name)))
    listed = FilesystemStore.list

    async def faulty_list(
        store: FilesystemStore, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Any]:
        await meet_fault("list", prefix)
        async for each in listed(store, prefix, start_after):
            yield each

    FilesystemStore.list = faulty_list  # type: ignore[method-assign]


if __name__ == "__main__":
    make_faulty()
    main()
