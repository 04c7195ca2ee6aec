"""Checks of a cluster: the demands of its bucket on this release, and a broker's answers."""

from __future__ import annotations

from tidelog.bucket.cluster_reader import ClusterReader
from tidelog.client.admin.administration import cluster_features, describe_cluster
from tidelog.client.pool import Client
from tidelog.clock import Clock
from tidelog.coordinator.cluster.records.bucket_format import FORMAT_VERSION, check_supported
from tidelog.coordinator.cluster.records.records import BROKER_VERSION
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.features import level_of
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.doctor.findings import Finding, failed, ok, warning
from tidelog.errors import CorruptObject, InvalidConfiguration, UnsupportedFormat
from tidelog.storage.object_store import ObjectStore, StoreError
from tidelog.workers.offload import InlineOffload

_NEWER_REMEDY = "install the release of Tidelog that the newest brokers have"


async def bucket_finding(store: ObjectStore, clock: Clock) -> tuple[Finding, str | None]:
    """The check of the bucket's format and level, and the cluster's id if it could be read."""
    reader = ClusterReader(store, clock, InlineOffload(), ClusterSettings())
    try:
        state = await reader.refresh()
        assert state.cluster is not None
        check_supported(state.cluster, store.url, writing=True)
    except InvalidConfiguration as absent:
        return warning("bucket", str(absent)), None
    except UnsupportedFormat as newer:
        return failed("bucket", str(newer)), None
    except CorruptObject as damaged:
        return failed("bucket", str(damaged), "tidelog fsck names what is damaged"), None
    except StoreError as error:
        return failed("bucket", f"the metadata log cannot be read: {error}"), None
    return _level(state), state.cluster_id


def _level(state: ClusterState) -> Finding:
    assert state.cluster is not None
    level = level_of(state)
    brokers = ", ".join(
        f"{each.broker_id} (version {each.version})" for each in state.live_brokers()
    )
    found = (
        f"cluster {state.cluster_id}, format {state.cluster.format_version}, level {level},"
        f" brokers {brokers or 'none'}; this release: format {FORMAT_VERSION}, version"
        f" {BROKER_VERSION}"
    )
    if level > BROKER_VERSION:
        return failed("bucket", found, _NEWER_REMEDY)
    return ok("bucket", found)


async def broker_finding(client: Client, cluster_id: str | None) -> Finding:
    """The check of the broker that a client reaches. `cluster_id` is the bucket's.

    Raises RequestFailed, RequestRefused.
    """
    cluster = await describe_cluster(client)
    features = await cluster_features(client)
    versions = ", ".join(
        f"{each.broker_id} (version {each.version})"
        for each in sorted(features.brokers, key=lambda each: each.broker_id)
    )
    found = f"cluster {cluster.cluster_id}, level {features.level}, brokers {versions}"
    if cluster_id is not None and cluster.cluster_id != cluster_id:
        remedy = "give the broker of this bucket with --bootstrap, or this broker's store"
        return failed("broker", f"{found}, but the bucket holds cluster {cluster_id}", remedy)
    if any(each.version > BROKER_VERSION for each in features.brokers):
        return warning("broker", found, f"some brokers are newer: {_NEWER_REMEDY}")
    if features.highest > features.level:
        remedy = "if you will not go back to the earlier release: tidelog cluster features upgrade"
        return warning("broker", f"{found}; level {features.highest} is possible", remedy)
    return ok("broker", found)
