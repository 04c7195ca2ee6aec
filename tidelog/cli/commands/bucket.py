"""`tidelog bucket`: create, check, copy and repair the bucket of a cluster."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidelog.bucket.policy import Role, role_policy
from tidelog.cli.broker_client import json_option
from tidelog.cli.commands.fsck import reporting
from tidelog.cli.exits import INCONSISTENT, REFUSED
from tidelog.cli.scram_options import NewCredential, ScramOption, new_salt
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.credential_files import change_credentials
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.entropy import SystemEntropy
from tidelog.errors import Refused
from tidelog.storage.stores.location import open_store

if TYPE_CHECKING:
    from tidelog.bucket.copy.command import CopyResult
    from tidelog.storage.stores.s3.bucket_admin import BucketReport

PATIENCE_SECONDS = 60.0

# boto3 imports slowly and takes 17 MB: only the commands that need it import it.


@click.group()
def bucket() -> None:
    """Create, check, copy and repair the bucket of a cluster."""


@bucket.command()
@click.argument("url")
@click.option(
    "--add-scram",
    "credentials",
    type=ScramOption(),
    multiple=True,
    help="A first user, so that the cluster begins closed. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(url: str, credentials: tuple[NewCredential, ...], as_json: bool) -> None:
    """Create the bucket of s3://BUCKET/PREFIX, and the rule that ends incomplete uploads.

    With --add-scram, also create the cluster in it, with these users. Then URL may be a folder.
    """
    from tidelog.storage.stores.s3.bucket_admin import create_bucket

    facts: dict[str, object] = {}
    if not (credentials and url.startswith("file://")):
        done = create_bucket(url)
        facts = asdict(done)
        if not as_json:
            print(f"bucket {done.bucket}: {'created' if done.created else 'exists already'}")
            print(f"rule that ends incomplete uploads: {done.upload_rule}")
    if credentials:
        facts["cluster"] = asyncio.run(_found_cluster(url, credentials))
        facts["users"] = sorted({each.user for each in credentials})
        if not as_json:
            print(f"cluster {facts['cluster']}: created with {len(credentials)} credentials")
    if as_json:
        print(json.dumps(facts))


async def _found_cluster(url: str, credentials: tuple[NewCredential, ...]) -> str:
    """Create the cluster with its first users; its id. Refused if the cluster has begun.

    A death after the first entry leaves a cluster without users: the same command goes on there.
    """
    clock, entropy = SystemClock(), SystemEntropy()
    store = open_store(url, clock, entropy)
    try:
        log = await MetadataLog.open(store, clock, entropy, create=True)
        try:
            if log.state.sequence > 0:
                raise Refused(
                    f"{url} holds a cluster that has begun. Nothing was changed. Add users with:"
                    " tidelog users add"
                )
            added = {(each.user, each.mechanism): each.verifier(new_salt()) for each in credentials}
            await change_credentials(
                log, store, clock, entropy, None, lambda present: present.changed((), added)
            )
            return log.state.cluster_id
        finally:
            await log.close()
    finally:
        await store.close()


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
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--dry-run", is_flag=True, help="Copy nothing; print how much there is to copy.")
@click.option(
    "--patience",
    "patience_seconds",
    type=click.FloatRange(min=0),
    default=PATIENCE_SECONDS,
    show_default=True,
    help="Seconds to look for a moment at which no log grows.",
)
@json_option
def copy(source: str, target: str, dry_run: bool, patience_seconds: float, as_json: bool) -> None:
    """Copy the bucket FROM, which may be in use, to the empty bucket or prefix TO.

    The copy is the bucket as of one instant: it has each record that was acknowledged before, and
    none that was written after. Brokers open it like any bucket. Nothing in FROM is changed. A run
    that was interrupted goes on; a copy that no broker has opened is brought up to date.

    Exits with 4 if the copy has faults: those of FROM.
    """
    from tidelog.bucket.copy.command import copy_bucket

    progress = reporting(SystemClock().monotonic)
    done = copy_bucket(source, target, progress, patience_seconds, dry_run=dry_run)
    facts = copy_facts(done)
    if as_json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            if name != "faults":
                print(f"{name.replace('_', ' ')}: {value}")
        for key, why in facts["faults"].items():
            print(f"{key}: {why}")
    if facts["faults"]:
        sys.exit(INCONSISTENT)


def copy_facts(done: CopyResult) -> dict[str, Any]:
    """The result for JSON."""
    report = done.report
    instant = report.instant
    assert instant is not None
    facts: dict[str, Any] = {
        "cluster": report.cluster_id,
        "instant": _text_of(instant.time_ms),
        "looks": instant.looks,
        "rounds": report.rounds,
        "faults": dict(report.faults),
    }
    if done.plan is not None:
        absent = sum(not present for present in done.plan.values())
        return facts | {
            "objects_to_copy": absent,
            "bytes_to_copy": done.plan_bytes,
            "objects_present": len(done.plan) - absent,
        }
    if done.findings is not None:
        facts["faults"] |= {fault.key: fault.why for fault in done.findings.faults}
    return facts | {
        "complete": _text_of(report.complete_ms),
        "objects_copied": report.objects,
        "bytes_copied": report.bytes,
        "objects_present": report.present,
    }


def _text_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


@bucket.command()
@click.argument("url")
@click.option(
    "--role",
    type=click.Choice([each.value for each in Role]),
    required=True,
    help="broker; reader: SDK, Spark's sources; spark-sink: what Spark writes; fsck: tidelog fsck.",
)
def policy(url: str, role: str) -> None:
    """Print the least-privilege IAM policy of a role on s3://BUCKET/PREFIX, as JSON.

    Only a broker may read the users' credentials. A job that reads and writes needs the policies of
    reader and spark-sink.
    """
    from tidelog.storage.stores.s3.s3_address import parse_s3_url

    address = parse_s3_url(url)
    key = None if address.encryption is None else address.encryption.kms_key_id
    document = role_policy(Role(role), address.bucket, address.prefix, address.partition, key)
    print(json.dumps(document, indent=2))


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

    found = repair_bucket(url, accepted, reporting(SystemClock().monotonic))
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
