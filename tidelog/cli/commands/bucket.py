"""`tidelog bucket`: create, check and repair the bucket of a cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tidelog.cli.broker_client import json_option
from tidelog.cli.exits import INCONSISTENT, REFUSED

if TYPE_CHECKING:
    from tidelog.storage.stores.s3.bucket_admin import BucketReport

# boto3 imports slowly and takes 17 MB: only the commands that need it import it.


@click.group()
def bucket() -> None:
    """Create, check and repair the bucket of a cluster."""


@bucket.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(url: str, as_json: bool) -> None:
    """Create the bucket of s3://BUCKET/PREFIX, and the rule that ends incomplete uploads."""
    from tidelog.storage.stores.s3.bucket_admin import create_bucket

    done = create_bucket(url)
    if as_json:
        print(json.dumps(asdict(done)))
        return
    print(f"bucket {done.bucket}: {'created' if done.created else 'exists already'}")
    print(f"rule that ends incomplete uploads: {done.upload_rule}")


@bucket.command()
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(url: str, as_json: bool) -> None:
    """Check whether brokers can run on s3://BUCKET/PREFIX, and list the obstacles."""
    from tidelog.storage.stores.s3.bucket_admin import check_bucket

    report = check_bucket(url)
    if as_json:
        print(json.dumps({"ok": report.ok, **asdict(report)}))
    else:
        _print(report)
    if not report.ok:
        sys.exit(REFUSED)


@bucket.command()
@click.argument("url")
@click.option(
    "--accept-loss",
    "accepted",
    multiple=True,
    metavar="WHAT",
    help="Accept the loss of WHAT: log-end, a topic, a partition like flights-0, or everything that"
    " one damaged object holds, by its key. May be repeated.",
)
@json_option
def repair(url: str, accepted: tuple[str, ...], as_json: bool) -> None:
    """Print what a damaged bucket has lost; with --accept-loss, continue without it.

    Without --accept-loss nothing is changed. With it, no broker may run. The metadata log records
    the decision for ever, and brokers serve the rest. Exits with 4 if there are losses that were
    not accepted.
    """
    from tidelog.repair.command import repair_bucket

    found = repair_bucket(url, accepted)
    if as_json:
        print(json.dumps(found.facts()))
    else:
        for line in found.lines():
            print(line)
    if not found.is_whole:
        sys.exit(INCONSISTENT)


def _print(report: BucketReport) -> None:
    print(f"{report.url}: {'usable' if report.ok else 'NOT usable'}")
    if report.problem is not None:
        print(f"  problem: {report.problem}")
    if not report.reachable:
        return
    print(f"  conditional writes: {'honoured' if report.conditional_writes else 'NOT honoured'}")
    note = "; deleted objects keep costing" if report.versioning == "enabled" else ""
    print(f"  versioning: {report.versioning}{note}")
    for rule in report.expiry_rules:
        print(f"  rule {rule.rule_id} on {rule.prefix!r} {rule.effect}: remove it")
    if report.missing_permissions:
        print(f"  missing permissions: {', '.join(report.missing_permissions)}")
    ends = "present" if report.incomplete_uploads_end else "missing: tidelog bucket create adds it"
    print(f"  rule that ends incomplete uploads: {ends}")
