"""Checks of the metadata log, its snapshots, and leases."""

from __future__ import annotations

from dataclasses import replace

from tidelog.bucket.fsck.context import CheckContext
from tidelog.bucket.fsck.faults import FaultKind, Findings
from tidelog.bucket.object_keys import parse_key
from tidelog.coordinator.cluster.log.leases import decode_lease
from tidelog.coordinator.cluster.log.prefix import (
    LEASE_PREFIX,
    LOG_PREFIX,
    LOG_SUFFIX,
    SNAPSHOT_PREFIX,
)
from tidelog.coordinator.cluster.log.snapshots import SNAPSHOT_SUFFIX
from tidelog.coordinator.cluster.log.stamps import found_stamps
from tidelog.coordinator.cluster.records.documents import checksum_of
from tidelog.coordinator.cluster.records.records import MetadataEntry, decode_entry
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer, ObjectNotFound
from tidelog.storage.sequence import NUMBER_DIGITS


async def check_metadata(context: CheckContext) -> Findings:
    """Check each entry, each snapshot, and that the entries lead from one snapshot to the next."""
    findings = Findings()
    snapshots = await _numbers(context, SNAPSHOT_PREFIX, SNAPSHOT_SUFFIX)
    entries = await _numbers(context, LOG_PREFIX, LOG_SUFFIX)
    state: ClusterState | None = ClusterState()
    previous = -1
    for number in sorted({*snapshots, *entries}):
        if number in entries:
            # Entries below a snapshot may be deleted, from the oldest on.
            if number > max(previous + 1, max(snapshots, default=-1) + 1):
                why = f"it is missing, although entry {number} exists"
                findings.add(FaultKind.MISSING, entry_key(previous + 1), why)
            state = await _follow(context, entries[number], number, state, findings)
        if number in snapshots:
            found = await _snapshot(context, snapshots[number], findings)
            # The entries before a copy's first snapshot were never there.
            led_to = None if state is None or state.sequence != number else state
            if found is not None and led_to is not None and not _agree(led_to, found):
                why = "it holds another state than the entries lead to"
                findings.add(FaultKind.CONTRADICTION, snapshots[number], why)
            state = found if found is not None else state
        previous = number
    return findings


async def check_leases(context: CheckContext) -> Findings:
    """Check that leases decode."""
    findings = Findings()
    async for meta in context.list(LEASE_PREFIX):
        # The check of leftovers names a foreign object.
        data = None if parse_key(meta.key) is None else await _get(context, meta.key)
        if data is None:
            continue
        try:
            decode_lease(meta.key, data)
            findings.counts["leases"] += 1
        except CorruptObject as error:
            findings.blame(error)
    return findings


async def _follow(
    context: CheckContext,
    key: str,
    number: int,
    state: ClusterState | None,
    findings: Findings,
) -> ClusterState | None:
    """The state after an entry; None if the state before is missing or wrong."""
    data = await _get(context, key)
    if data is None:
        return None
    try:
        entry = decode_entry(key, data)
        findings.counts["metadata entries"] += 1
        context.progress(key)
        if entry.sequence != number:
            raise CorruptObject(key, f"it says that it is entry {entry.sequence}")
        if state is None or state.sequence + 1 != number:
            return None
        if None not in (entry.previous, state.checksum) and entry.previous != state.checksum:
            why = f"it follows another entry {number - 1} than the one that is there"
            findings.add(FaultKind.CONTRADICTION, key, why)
            return None
        return replace(state.apply(entry), checksum=checksum_of(data))
    except CorruptObject as error:
        findings.blame(error)
    except InvalidRecord as error:
        why = f"it cannot follow the entries before it: {error}"
        findings.add(FaultKind.CONTRADICTION, key, why)
    return None


def _agree(led_to: ClusterState, snapshot: ClusterState) -> bool:
    is_same_entry = None in (led_to.checksum, snapshot.checksum) or (
        led_to.checksum == snapshot.checksum
    )
    return led_to == snapshot and is_same_entry


async def check_stamps(context: CheckContext) -> Findings:
    """Check that the writers of leases, checkpoints and WALs had applied this same log."""
    findings = Findings()
    cluster = context.access.cluster
    async for stamp, source in found_stamps(context.access.store, cluster.state):
        try:
            await cluster.verify(stamp, source)
            findings.counts["stamps of the metadata log"] += 1
        except CorruptObject as error:
            findings.blame(error)
    return findings


async def read_entry(context: CheckContext, number: int) -> MetadataEntry | None:
    """An entry of the metadata log; None if it is deleted already or cannot be read."""
    key = entry_key(number)
    data = await _get(context, key)
    try:
        return None if data is None else decode_entry(key, data)
    except CorruptObject:
        return None


async def _snapshot(context: CheckContext, key: str, findings: Findings) -> ClusterState | None:
    data = await _get(context, key)
    if data is None:
        return None
    try:
        found = await context.access.offload.run(decode_snapshot, key, data)
    except CorruptObject as error:
        findings.blame(error)
        return None
    findings.counts["metadata snapshots"] += 1
    context.progress(key)
    return found


async def _get(context: CheckContext, key: str) -> Buffer | None:
    """The object's bytes; None if it was deleted since its listing."""
    try:
        return (await context.access.store.get(key)).data
    except ObjectNotFound:
        return None


async def _numbers(context: CheckContext, prefix: str, suffix: str) -> dict[int, str]:
    """The keys of the numbered objects under a prefix, by number."""
    found = {}
    async for meta in context.list(prefix):
        digits = meta.key.removeprefix(prefix).removesuffix(suffix)
        is_number = len(digits) == NUMBER_DIGITS and digits.isascii() and digits.isdigit()
        if is_number and meta.key.endswith(suffix):
            found[int(digits)] = meta.key
    return found


def entry_key(number: int) -> str:
    return f"{LOG_PREFIX}{number:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
