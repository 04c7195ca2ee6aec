"""`tidelog fsck`: proves a bucket consistent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click

from tidelog.bucket.fsck.faults import FaultKind, Findings
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.views.bucket import Bucket
from tidelog.cli.broker_client import json_option
from tidelog.cli.bucket_reader import store_option, with_bucket
from tidelog.cli.exits import INCONSISTENT
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.settings import (
    DELETE_GRACE_MS_MIN,
    ClusterSettings,
    append_timeout_ms_within,
)

PROGRESS_SECONDS = 5.0


@click.command()
@store_option
@click.option("--shallow", is_flag=True, help="Read only the ends of objects, not every byte.")
@click.option(
    "--delete-grace-ms",
    "grace_ms",
    type=click.IntRange(DELETE_GRACE_MS_MIN),
    default=ClusterSettings().delete_grace_ms,
    show_default=True,
    help="The brokers' log.delete.grace.ms.",
)
@json_option
def fsck(store: str, shallow: bool, grace_ms: int, as_json: bool) -> None:
    """Prove a bucket consistent, also while brokers run; nothing is changed.

    Prints the numbers of checked objects, and each fault with the object's key. Exits with 4 if
    there is any.
    """
    progress = reporting(SystemClock().monotonic)

    async def run(bucket: Bucket) -> Findings:
        return await check_bucket(bucket, progress, deep=not shallow)

    settings = ClusterSettings(
        delete_grace_ms=grace_ms, append_timeout_ms=append_timeout_ms_within(grace_ms)
    )
    found = with_bucket(store, run, settings)
    faults = sorted(found.faults, key=lambda fault: (fault.key, fault.why))
    if as_json:
        facts = {
            "consistent": not faults,
            "checked": dict(sorted(found.counts.items())),
            "faults": [
                {
                    "key": each.key,
                    "kind": each.kind.label,
                    "why": each.why,
                    "partitions": list(each.affected),
                    "meaning": each.kind.value,
                }
                for each in faults
            ],
        }
        print(json.dumps(facts))
    else:
        for name, count in sorted(found.counts.items()):
            print(f"{count:>12,}  {name}")
        for each in faults:
            print(each)
        for kind in FaultKind:
            if any(each.kind is kind for each in faults):
                print(f"{kind.label}: {kind.value}")
        print(f"{len(faults)} faults" if faults else "consistent")
    if faults:
        sys.exit(INCONSISTENT)


def reporting(now: Callable[[], float]) -> Callable[[str], None]:
    """A callback that prints the progress to stderr every few seconds."""
    started = told = now()
    objects = 0

    def note(key: str) -> None:
        nonlocal told, objects
        objects += 1
        if now() - told >= PROGRESS_SECONDS:
            told = now()
            print(f"{told - started:.0f} s: {objects} objects, at {key}", file=sys.stderr)

    return note
