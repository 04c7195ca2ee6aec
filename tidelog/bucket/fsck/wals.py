"""Checks of WALs, checkpoints, and the objects that the partitions' bases refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.bucket.fsck.context import CheckContext
from tidelog.bucket.fsck.faults import FaultKind, Findings
from tidelog.bucket.fsck.wal_checks import check_adopted, check_extents, check_place, check_slot
from tidelog.bucket.object_keys import MergedObjectKey, parse_key
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import Incarnation, Slot, TopicPartition
from tidelog.storage.object_store import ObjectMeta, ObjectNotFound
from tidelog.storage.superseded import required
from tidelog.wal.format.object_format import (
    HEADER_BYTES,
    MERGED_FOLDER,
    ObjectHeader,
    ObjectKind,
    wal_key,
)
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.format.staged_format import check_bodies
from tidelog.wal.log.adoption import STAGED_FOLDER
from tidelog.wal.read.index import read_batch_index, read_index
from tidelog.wal.recover.recovery import decode_handover
from tidelog.wal.recover.wal_end import list_slots
from tidelog.wal.write.checkpoint import (
    checkpoint_key,
    decode_checkpoint,
    list_checkpoints,
)
from tidelog.wal.write.staging import read_staged_index

HOLE_MS = 120_000
"""How long a slot may be missing before later slots prove a hole.

This is much longer than a writer retries a put.
"""


@dataclass(frozen=True, slots=True)
class _Wal:
    """One listing of a WAL that is, or was, needed."""

    incarnation: Incarnation
    floor: Slot
    slots: Mapping[Slot, ObjectMeta]
    sealed_at: Slot | None
    """The end of the WAL, from the metadata log."""
    is_needed: bool
    """Whether it may be replayed: it is live, or a partition's tenures name it."""

    @property
    def end(self) -> Slot:
        """The first slot that does not count."""
        if self.sealed_at is not None:
            return self.sealed_at
        end = self.floor
        while end in self.slots and self.slots[end].size != HEADER_BYTES:
            end = Slot(end + 1)
        return end


def incarnations_of(state: ClusterState) -> list[Incarnation]:
    """All incarnations that were ever registered."""
    live = [info.incarnation for info in state.brokers.values()]
    return sorted([*live, *(wal.incarnation for wal in state.retired.values())])


async def check_wal(context: CheckContext, incarnation: Incarnation) -> Findings:
    """Check one incarnation's WAL: no hole, the seal in its place, all objects intact."""
    findings = Findings()
    wal = await _listed(context, incarnation)
    slots = sorted(wal.slots)
    for first in range(0, len(slots), _RUN):
        run = slots[first : first + _RUN]
        findings.merge(await _check_run(context, wal, run))
    findings.merge(await context.settled(lambda: _check_slots(context, incarnation)))
    return findings


_RUN = 256


async def _listed(context: CheckContext, incarnation: Incarnation) -> _Wal:
    store = context.access.store
    state = await context.bucket.refresh()
    checkpoints = await list_checkpoints(store, incarnation)
    slots = {slot: meta async for slot, meta in list_slots(store, incarnation)}
    needed = incarnation.epoch in state.brokers or any(
        tenure.incarnation == incarnation
        for topic in state.topics.values()
        for tenures in topic.partitions
        for tenure in tenures
    )
    floor = checkpoints[-1] if checkpoints else Slot(0)
    retired = state.retired.get(incarnation.epoch)
    sealed_at = None if retired is None else retired.end_slot
    return _Wal(incarnation, floor, slots, sealed_at, needed)


async def _check_slots(context: CheckContext, incarnation: Incarnation) -> Findings:
    """Check the facts that the listing alone shows."""
    wal = await _listed(context, incarnation)
    findings = Findings()
    findings.counts["WALs"] += 1
    if wal.is_needed and wal.sealed_at is not None:
        for number in range(wal.floor, wal.sealed_at):
            if number not in wal.slots:
                key = wal_key(incarnation, Slot(number))
                why = f"it is missing: the WAL must be whole from slot {wal.floor} to its seal"
                findings.add(FaultKind.MISSING, key, f"{why} at {wal.sealed_at}")
    if wal.sealed_at is not None:
        await _check_seal(context, wal, wal.sealed_at, findings)
    else:
        _check_hole(wal, findings)
    return findings


async def _check_seal(context: CheckContext, wal: _Wal, at: Slot, findings: Findings) -> None:
    key = wal_key(wal.incarnation, at)
    findings.counts["seals"] += 1
    try:
        found = await read_index(context.access.store, context.access.offload, key)
    except ObjectNotFound:
        findings.add(FaultKind.MISSING, key, "it is missing: the seal that ends the WAL")
        return
    except CorruptObject as error:
        findings.blame(error)
        return
    if not isinstance(found, ObjectHeader) or found.kind is not ObjectKind.SEAL:
        findings.add(FaultKind.CONTRADICTION, key, "it is no seal, though the WAL is retired here")


def _check_hole(wal: _Wal, findings: Findings) -> None:
    """Check for holes. Concurrent puts leave slots missing for a while, and seals lie ahead.

    A seal at the end is no hole: the log may not name it yet. If it lies in the place of records,
    the check of partitions tells.
    """
    if wal.end in wal.slots:
        return
    newest_ms = max((meta.modified_ms for meta in wal.slots.values()), default=0)
    for slot, meta in sorted(wal.slots.items()):
        is_data = meta.size != HEADER_BYTES
        if slot > wal.end and is_data and newest_ms - meta.modified_ms > HOLE_MS:
            key = wal_key(wal.incarnation, wal.end)
            why = f"it is missing, and {meta.key} after it is {newest_ms - meta.modified_ms} ms"
            findings.add(FaultKind.MISSING, key, f"{why} older than the WAL's newest object")
            return


async def _check_run(context: CheckContext, wal: _Wal, run: list[Slot]) -> Findings:
    """Check the objects of some slots, and that each continues the one before."""
    crcs: dict[Slot, SlotIndex] = {}

    async def check(slot: Slot) -> Findings:
        findings = Findings()
        key = wal_key(wal.incarnation, slot)
        try:
            found = await _read(context, key)
            check_place(key, wal.incarnation, slot, found, (ObjectKind.DATA, ObjectKind.SEAL))
        except ObjectNotFound:
            return findings
        except CorruptObject as error:
            findings.blame(error)
            return findings
        findings.counts["WAL objects"] += 1
        context.progress(key)
        if isinstance(found, SlotIndex):
            crcs[slot] = found
            findings.counts["record batches"] += len(found)
        elif slot < wal.end:
            findings.add(FaultKind.CONTRADICTION, key, f"a seal below the WAL's end, {wal.end}")
        return findings

    # The last object of the previous run is read once more, for its checksum.
    before = [Slot(run[0] - 1)] if run[0] - 1 in wal.slots else []
    findings = await context.each(run, check)
    if before:
        await context.each(before, check)
    for slot, found in sorted(crcs.items()):
        previous = crcs.get(Slot(slot - 1))
        if previous is not None and found.header.previous_crc != previous.crc:
            why = "it does not continue the slot before it"
            findings.add(FaultKind.CONTRADICTION, found.key, why)
    return findings


async def _read(context: CheckContext, key: str) -> SlotIndex | ObjectHeader:
    store, offload = context.access.store, context.access.offload
    if not context.deep:
        return await read_index(store, offload, key)
    return await offload.run(check_slot, key, (await store.get(key)).data)


async def check_merged(context: CheckContext) -> Findings:
    """Check each object into which batches were copied together."""

    async def check(each: tuple[str, MergedObjectKey]) -> Findings:
        key, (incarnation, number) = each
        findings = Findings()
        try:
            found = await _read(context, key)
            check_place(key, incarnation, number, found, (ObjectKind.MERGED,))
        except ObjectNotFound:
            return findings
        except CorruptObject as error:
            findings.blame(error)
            return findings
        findings.counts["merged objects"] += 1
        context.progress(key)
        return findings

    keys = [meta.key async for meta in context.list(MERGED_FOLDER)]
    merged = [(key, found) for key in keys if isinstance(found := parse_key(key), MergedObjectKey)]
    return await context.each(merged, check)


async def check_checkpoints(context: CheckContext, incarnation: Incarnation) -> Findings:
    """Check each checkpoint of an incarnation, and each image in it."""

    async def check(slot: Slot) -> Findings:
        findings = Findings()
        key = checkpoint_key(incarnation, slot)
        try:
            data = (await context.access.store.get(key)).data
            checkpoint = await context.access.offload.run(decode_checkpoint, key, data)
            for row in range(len(checkpoint.images)):
                checkpoint.images.image(row)
        except ObjectNotFound:
            return findings
        except CorruptObject as error:
            findings.blame(error)
            return findings
        findings.counts["checkpoints"] += 1
        findings.counts["partition images"] += len(checkpoint.images)
        context.progress(key)
        return findings

    slots = await list_checkpoints(context.access.store, incarnation)
    return await context.each(slots, check)


async def check_handovers(context: CheckContext) -> Findings:
    """Check the hand-over images that tenures name."""

    async def check(named: tuple[TopicPartition, str]) -> Findings:
        partition, key = named
        findings = Findings()
        try:
            decode_handover(key, (await context.access.store.get(key)).data, partition)
            findings.counts["hand-over images"] += 1
        except ObjectNotFound:
            state = await context.bucket.refresh()
            if any(tenure.handover == key for tenure in state.tenures(partition)):
                findings.add(FaultKind.MISSING, key, f"it is missing: the image of {partition}")
        except CorruptObject as error:
            findings.blame(error)
        return findings

    named = [
        (TopicPartition(topic.topic_id, number), tenure.handover)
        for topic in context.bucket.state.topics.values()
        for number, tenures in enumerate(topic.partitions)
        for tenure in tenures
        if tenure.handover is not None
    ]
    return await context.each(named, check)


async def check_tails(context: CheckContext, views: list[PartitionView]) -> Findings:
    """Check that the objects to which the partitions' tails refer hold those batches."""
    by_key: dict[str, list[PartitionView]] = {}
    for view in views:
        for key in dict.fromkeys(view.tail.keys):
            by_key.setdefault(key, []).append(view)

    async def check(key: str) -> Findings:
        findings = Findings()
        try:
            if key.startswith(STAGED_FOLDER):
                with required():
                    await _check_staged(context, key, by_key[key], findings)
                return findings
            index = await read_batch_index(context.access.store, context.access.offload, key)
            for view in by_key[key]:
                extents = [extent for extent in view.tail if extent.key == key]
                check_extents(key, index, view.partition, extents)
                findings.counts["extents"] += len(extents)
        except MissingObject:
            await _judge_missing(context, key, by_key[key], findings)
        except CorruptObject as error:
            findings.blame(error)
        return findings

    return await context.each(by_key, check)


async def _check_staged(
    context: CheckContext, key: str, views: list[PartitionView], findings: Findings
) -> None:
    """Check that a staged object holds the batches that partitions have adopted from it."""
    store = context.access.store
    if context.deep:
        index = await context.access.offload.run(check_bodies, key, (await store.get(key)).data)
    else:
        index = await read_staged_index(store, key)
    for view in views:
        extents = [extent for extent in view.tail if extent.key == key]
        check_adopted(key, index, view.partition, extents)
        findings.counts["extents"] += len(extents)


async def _judge_missing(
    context: CheckContext, key: str, views: list[PartitionView], findings: Findings
) -> None:
    """Report a missing object, unless its batches have reached the table meanwhile (F4)."""
    newest = await context.bucket.view_partitions([view.partition for view in views])
    for view in newest.partitions.values():
        if key in view.tail.keys:
            why = f"it is missing: batches of {view} lie in it"
            findings.add(FaultKind.MISSING, key, why)
