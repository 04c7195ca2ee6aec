"""`tidelog doctor`: checks whether brokers can run on a store, and whether a cluster is well."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import click

from tidelog.cli.address import Bootstrap
from tidelog.cli.broker_client import json_option, optional_bootstrap_option, with_client
from tidelog.cli.exits import REFUSED
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.clock import SystemClock
from tidelog.doctor.cluster_checks import broker_finding, bucket_finding
from tidelog.doctor.cost import cost_finding
from tidelog.doctor.findings import Finding, Grade, failed
from tidelog.doctor.machine_checks import machine_findings
from tidelog.doctor.store_checks import store_findings
from tidelog.entropy import SystemEntropy
from tidelog.storage.object_store import StoreError
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.retrying import StoreRetrySettings
from tidelog.storage.stores.timeouts import TimeoutStore

ANSWER_SECONDS_MAX = 10.0
ONCE = StoreRetrySettings(deadline_ms=0)
"""A check reports the first error."""
HTTP_VARIABLE = "TIDELOG_HTTP_BEARER_TOKEN"


@click.command()
@click.argument("url", metavar="STORE_URL", envvar="TIDELOG_STORE")
@optional_bootstrap_option
@click.option(
    "--http",
    "https",
    multiple=True,
    metavar="URL",
    help="A broker's HTTP address, for the cost a month. May be repeated.",
)
@json_option
def doctor(url: str, bootstrap: Bootstrap | None, https: tuple[str, ...], as_json: bool) -> None:
    """Check a store, its cluster and this machine; each line has a verdict and the remedy.

    Objects are written only below probe/, and deleted. Exits with 1 if a check has failed; a
    warning fails nothing.
    """
    findings = []
    for finding in _findings(url, bootstrap, https):
        findings.append(finding)
        if not as_json:
            print(_line(finding), flush=True)
    well = all(each.verdict is not Grade.FAILED for each in findings)
    if as_json:
        print(json.dumps({"ok": well, "checks": [asdict(each) for each in findings]}))
    if not well:
        sys.exit(REFUSED)


def _findings(url: str, bootstrap: Bootstrap | None, https: tuple[str, ...]) -> Iterator[Finding]:
    yield from machine_findings(os.environ)
    of_store, cluster_id = asyncio.run(_of_store(url))
    yield from of_store
    if bootstrap is not None:
        yield _of_broker(bootstrap, cluster_id)
    if https:
        addresses = [each if "://" in each else f"http://{each}" for each in https]
        yield cost_finding(addresses, SystemClock().time_ms(), os.environ.get(HTTP_VARIABLE))


async def _of_store(url: str) -> tuple[Iterable[Finding], str | None]:
    """The findings about the store and its bucket, and the cluster's id."""
    clock, entropy = SystemClock(), SystemEntropy()
    try:
        opened = open_store(url, clock, entropy, retry=ONCE)
    except StoreError as error:
        return [failed("store", str(error))], None
    store = TimeoutStore(opened, ANSWER_SECONDS_MAX)
    try:
        findings = await store_findings(store, clock, entropy)
        if findings[0].verdict is Grade.FAILED:
            return findings, None
        of_bucket, cluster_id = await bucket_finding(store, clock)
        return [*findings, of_bucket], cluster_id
    finally:
        await store.close()


def _of_broker(bootstrap: Bootstrap, cluster_id: str | None) -> Finding:
    try:
        return with_client(bootstrap, lambda client: broker_finding(client, cluster_id))
    except (RequestFailed, RequestRefused) as error:
        return failed("broker", str(error), "; ".join(getattr(error, "__notes__", ())))


def _line(finding: Finding) -> str:
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"{finding.verdict:<8} {finding.check:<18} {finding.found}{remedy}"
