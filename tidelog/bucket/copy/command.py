"""The implementation of `tidelog bucket copy`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidelog.bucket.copy.copy import BucketCopy, CopyReport
from tidelog.bucket.copy.target import CopyTarget
from tidelog.bucket.fsck.context import Progress
from tidelog.bucket.fsck.faults import Findings
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.views.bucket import Bucket
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.errors import Refused
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.location import open_reader, open_store
from tidelog.storage.stores.s3.s3_address import parse_s3_url
from tidelog.workers.offload import ThreadOffload

THREADS = 2


@dataclass(frozen=True, slots=True)
class CopyResult:
    """A run's report, and fsck's findings in the copy. Of a dry run: the needed objects."""

    report: CopyReport
    findings: Findings | None = None
    plan: dict[str, bool] | None = None
    """Each needed object, and whether it is in the copy already."""
    plan_bytes: int = 0
    """The bytes of the objects that are not in the copy."""


def copy_bucket(
    source_url: str,
    target_url: str,
    progress: Progress,
    patience_seconds: float,
    *,
    dry_run: bool,
) -> CopyResult:
    """Copy a bucket, and check that the copy opens.

    Raises Refused, InvalidConfiguration, CorruptObject, UnsupportedFormat, StoreError.
    """
    check_apart(source_url, target_url)
    return asyncio.run(_copy(source_url, target_url, progress, patience_seconds, dry_run))


def check_apart(source_url: str, target_url: str) -> None:
    """Raise Refused if both addresses are the same, or one lies within the other.

    S3 buckets with different endpoints are taken for two, whatever their names. If the endpoints
    are two names of one service, `CopyTarget` notices it.
    """
    source, target = (f"{url.partition('?')[0].rstrip('/')}/" for url in (source_url, target_url))
    if source.startswith("s3://") and target.startswith("s3://"):
        here, there = (parse_s3_url(url).endpoint for url in (source_url, target_url))
        if here != there:
            return
    if source == target:
        raise Refused(f"{source} cannot be copied onto itself. Name another bucket or prefix")
    if source.startswith(target) or target.startswith(source):
        inner, outer = sorted((source, target), key=len, reverse=True)
        raise Refused(f"{inner} lies within {outer}. Name a bucket or a prefix beside it")


async def _copy(
    source_url: str,
    target_url: str,
    progress: Progress,
    patience_seconds: float,
    dry_run: bool,
) -> CopyResult:
    clock, entropy, offload = SystemClock(), SystemEntropy(), ThreadOffload(THREADS)
    stores: list[ObjectStore] = []
    try:
        source = open_reader(source_url, clock, entropy)
        stores.append(source)
        target = open_store(target_url, clock, entropy)
        stores.append(target)
        copy = BucketCopy(
            Bucket.unread(source, clock, entropy, offload).access,
            CopyTarget(target, clock, offload),
            progress,
            patience_seconds,
        )
        if dry_run:
            plan = await copy.plan()
            wanted = {key for key, present in plan.items() if not present}
            size = sum([meta.size async for meta in source.list() if meta.key in wanted])
            return CopyResult(copy.report, plan=plan, plan_bytes=size)
        report = await copy.run()
        opened = Bucket.unread(target, clock, entropy, offload)
        return CopyResult(report, await check_bucket(opened, progress, deep=False))
    finally:
        offload.close()
        for store in stores:
            await store.close()
