"""Access of commands to a bucket without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from tidelog.bucket.views.bucket import Bucket
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.entropy import SystemEntropy
from tidelog.storage.stores.location import open_reader
from tidelog.workers.offload import ThreadOffload

T = TypeVar("T")
THREADS = 2

store_option = click.option(
    "--store",
    envvar="TIDELOG_STORE",
    required=True,
    help="file:///dir, s3://bucket/prefix, or any URL that fsspec opens.",
)


def with_bucket(
    url: str, use: Callable[[Bucket], Awaitable[T]], settings: ClusterSettings | None = None
) -> T:
    """Run a command's coroutine with a freshly opened bucket."""

    async def run() -> T:
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_reader(url, clock, entropy)
        offload = ThreadOffload(THREADS)
        try:
            return await use(Bucket.unread(store, clock, entropy, offload, settings))
        finally:
            offload.close()
            await store.close()

    return asyncio.run(run())
