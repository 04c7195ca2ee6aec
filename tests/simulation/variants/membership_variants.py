"""Broken variants of the rules between brokers of one bucket: deletion, judgement of the dead,
hints, and records that other brokers can read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from tests.simulation.world.owners import OWNER, Owner
from tests.simulation.world.patches import Breakage, Patch
from tidelog.broker.collect import collector
from tidelog.broker.collect.anchors import AnchorReader
from tidelog.bucket import reachability
from tidelog.bucket.object_keys import MergedObjectKey, WalObject, parse_key
from tidelog.bucket.reachability import Anchor, all_tenures
from tidelog.coordinator.cluster.log import append_group
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.log.view_renewal import ViewRenewal
from tidelog.coordinator.cluster.membership import draining
from tidelog.coordinator.cluster.membership.lease_watch import LeaseWatch, Look, Renewal, Verdict
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation
from tidelog.wal.log.adoption import object_key


def _collector_blind() -> list[Patch]:
    """The collector does not know that partitions move (F1). It sees only the newest of a
    partition's tenures, and keeps a WAL only for images of its own incarnation."""
    right = AnchorReader.checkpoints

    def needed(state: ClusterState) -> frozenset[Incarnation]:
        live = {info.incarnation for info in state.brokers.values()}
        return frozenset(live | {tenures[-1].incarnation for _, tenures in all_tenures(state)})

    async def checkpoints(
        self: AnchorReader, incarnations: Iterable[Incarnation]
    ) -> Mapping[Incarnation, Anchor] | None:
        found = await right(self, incarnations)
        if found is None:
            return None
        return {
            owner: replace(
                anchor,
                objects=frozenset(key for key in anchor.objects if _owner_of(key) in (owner, None)),
            )
            for owner, anchor in found.items()
        }

    return [
        (reachability, "needed_incarnations", needed),
        (collector, "needed_incarnations", needed),
        # Without this patch, a collection would stop when it finds an unanchored tenure.
        (collector, "unanchored", lambda *_: iter(())),
        (AnchorReader, "checkpoints", checkpoints),
    ]


def _owner_of(key: str) -> Incarnation | None:
    match parse_key(object_key(key)):
        case WalObject(incarnation=owner) | MergedObjectKey(incarnation=owner):
            return owner
    return None


def _judge_across_outage() -> list[Patch]:
    """A watcher counts silence during which its own lease could not be written either (B2)."""
    right = LeaseWatch.observed

    def observed(
        self: LeaseWatch, state: ClusterState, look: Look, _: Renewal | None, uniform: Any
    ) -> Verdict | None:
        return right(self, state, look, Renewal(look.asked_at, look.asked_at), uniform)

    return [(LeaseWatch, "observed", observed)]


def _hints_needed() -> list[Patch]:
    """A broker reads the metadata log when another one hints at an entry, and when it appends."""
    right_refresh, right_renewed = MetadataLog.refresh, ViewRenewal.renewed
    started: set[Owner | None] = set()
    hinted: set[Owner | None] = set()

    async def follow(*_: Any) -> NoReturn:
        started.add(OWNER.get())
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    async def refresh(self: MetadataLog) -> ClusterState:
        if OWNER.get() in started - hinted:
            return self.state
        return await right_refresh(self)

    async def renewed(self: ViewRenewal, *, even_if_alone: bool = False) -> None:
        if not even_if_alone:
            return
        owner = OWNER.get()
        hinted.add(owner)
        try:
            await right_renewed(self, even_if_alone=True)
        finally:
            hinted.discard(owner)

    return [
        (MetadataLog, "follow", follow),
        (MetadataLog, "refresh", refresh),
        (ViewRenewal, "request", lambda _: None),
        (ViewRenewal, "renewed", renewed),
    ]


def _newer_records_early() -> list[Patch]:
    """A broker writes records that an earlier release, which still runs, cannot read."""
    return [
        (append_group, "check_readable", lambda *_: None),
        # A drain looks itself, to inform the operator.
        (draining, "lacking", lambda *_: []),
    ]


MEMBERSHIP_VARIANTS: dict[str, Breakage] = {
    "collector-blind": _collector_blind,
    "judge-across-outage": _judge_across_outage,
    "hints-needed": _hints_needed,
    "newer-records-early": _newer_records_early,
}
