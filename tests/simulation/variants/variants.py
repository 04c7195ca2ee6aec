"""Tidelog broken on purpose, each variant in one place. The simulation must notice every
variant."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tests.simulation.variants.cluster_variants import CLUSTER_VARIANTS
from tests.simulation.variants.group_variants import GROUP_VARIANTS
from tests.simulation.variants.handover_variants import HANDOVER_VARIANTS
from tests.simulation.variants.membership_variants import MEMBERSHIP_VARIANTS
from tests.simulation.variants.segment_variants import SEGMENT_VARIANTS
from tests.simulation.variants.transaction_variants import TRANSACTION_VARIANTS
from tests.simulation.world.patches import Breakage, Patch, patched
from tidelog.broker.dispatch.request_order import RequestOrder
from tidelog.broker.partitions.log_writer import LogWriter, WrittenBatch
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.coordinator.cluster.membership import takeover
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper, OwnFence
from tidelog.identifiers import Slot
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.sequence import AppendAttempt, AppendResult, Mine
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log import partition_log
from tidelog.wal.log.extents import SlotEffect
from tidelog.wal.log.partition_log import AppendedBatch, PartitionLog
from tidelog.wal.log.producer_state import ProducerState
from tidelog.wal.recover import wal_end
from tidelog.wal.recover.wal_end import WalEnd
from tidelog.wal.write.checkpoint import newest_checkpoint
from tidelog.wal.write.slot_upload import SlotUpload, SlotUploader
from tidelog.wal.write.writer import Told, WalLost, WalWriter

_DURABLE_ALREADY = Slot(-1)


def _no_dedupe() -> list[Patch]:
    """Every batch of an idempotent producer is appended, even a duplicate."""
    return [
        (ProducerState, "find_duplicate", lambda *_: None),
        (partition_log, "refuse_if_invalid", lambda _: None),
    ]


def _no_sequence_check() -> list[Patch]:
    """Repeated batches are recognised, but gaps and disorder are accepted."""
    return [(partition_log, "refuse_if_invalid", lambda _: None)]


def _acknowledge_early() -> list[Patch]:
    """No acknowledgement waits for the slot to be durable."""

    def durable(self: WalWriter, slot: Slot) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def tell(self: WalWriter, slot: Slot, told: Told, **_: bool) -> None:
        asyncio.get_running_loop().call_soon(told, None)

    return [(WalWriter, "durable", durable), (WalWriter, "tell", tell)]


def _duplicates_at_once() -> list[Patch]:
    """A repeated batch is answered before the original is durable (H4)."""
    right = LogWriter.append

    def append(self: LogWriter, *arguments: Any, **named: Any) -> WrittenBatch:
        written = right(self, *arguments, **named)
        if not written.appended.duplicate:
            return written
        return WrittenBatch(written.appended, _DURABLE_ALREADY)

    return [(LogWriter, "append", append)]


def _acknowledge_out_of_order() -> list[Patch]:
    """A slot counts as soon as its own put is confirmed."""
    waiting: dict[str, list[Callable[[], object]]] = defaultdict(list)
    right_durable, right_tell, right_put = WalWriter.durable, WalWriter.tell, SlotUploader.put

    def durable(self: WalWriter, slot: Slot) -> asyncio.Future[None]:
        future = right_durable(self, slot)
        confirmed = partial(_succeed, future)
        waiting[wal_key(self.incarnation, slot)].append(confirmed)
        return future

    def tell(self: WalWriter, slot: Slot, told: Told, **named: bool) -> None:
        once = _once(told)
        waiting[wal_key(self.incarnation, slot)].append(partial(once, None))
        right_tell(self, slot, once, **named)

    async def put(self: SlotUploader, upload: SlotUpload) -> None:
        await right_put(self, upload)
        for confirmed in waiting.pop(upload.assembled.key, ()):
            asyncio.get_running_loop().call_soon(confirmed)

    return [(WalWriter, "durable", durable), (WalWriter, "tell", tell), (SlotUploader, "put", put)]


def _once(told: Told) -> Told:
    """Tell each producer only once."""
    left = [told]

    def tell(lost: WalLost | None = None) -> None:
        if left:
            left.pop()(lost)

    return tell


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _no_seal() -> list[Patch]:
    """A take-over believes the first gap that it sees, and puts no seal there."""

    async def seal(store: ObjectStore, _clock: Any, _entropy: Any, dead: Any, *_: Any) -> WalEnd:
        floor = await newest_checkpoint(store, dead) or Slot(0)
        return WalEnd(await wal_end.guess_tail(store, dead, floor))

    return [(takeover, "seal", seal)]


def _end_too_low() -> list[Patch]:
    """A take-over stops reading one slot before the seal."""
    right = wal_end.seal

    async def seal(*arguments: Any) -> WalEnd:
        return WalEnd(Slot(max(0, (await right(*arguments)).slot - 1)))

    return [(takeover, "seal", seal)]


def _replay_skips_slots() -> list[Patch]:
    """Recovery skips the entries of some slots."""
    right = SlotIndex.entries

    def entries(self: SlotIndex, *arguments: Any) -> Any:
        return () if self.header.slot % 8 == 5 else right(self, *arguments)

    return [(SlotIndex, "entries", entries)]


def _checkpoint_too_new() -> list[Patch]:
    """A checkpoint holds a part of the slot with which replay begins."""
    return [(WalWriter, "begin_slot", lambda self: self.slot)]


def _taken_is_mine() -> list[Patch]:
    """A refused put counts as the writer's own earlier attempt."""

    async def read_back_refused(self: AppendAttempt) -> AppendResult:
        return Mine("")

    return [(AppendAttempt, "read_back_refused", read_back_refused)]


def _unknown_is_lost() -> list[Patch]:
    """An attempt with an unknown outcome counts as not applied, without a look at the slot."""

    async def read_back(self: AppendAttempt) -> AppendResult | None:
        return None

    return [(AppendAttempt, "read_back", read_back)]


def _watermark_behind() -> list[Patch]:
    """The high watermark is one below the durable end."""
    right = PartitionLog.advance

    def advance(self: PartitionLog, slot: SlotEffect) -> None:
        right(self, slot)
        if slot.extents:
            self.high_watermark -= 1

    return [(PartitionLog, "advance", advance)]


def _watermark_ahead() -> list[Patch]:
    """Appended records are shown before they are durable."""
    right = PartitionLog.append

    def append(self: PartitionLog, *arguments: Any, **named: Any) -> AppendedBatch:
        appended = right(self, *arguments, **named)
        self.high_watermark = self.next_offset
        return appended

    return [(PartitionLog, "append", append)]


def _forget_producers() -> list[Patch]:
    """A new owner has no state of producers."""
    right = PartitionLog.begin_tenure

    def begin_tenure(self: PartitionLog, leader_epoch: Any) -> None:
        right(self, leader_epoch)
        PartitionLog.__init__(self, replace(self.image(), producers=()))

    return [(PartitionLog, "begin_tenure", begin_tenure)]


def _no_lease() -> list[Patch]:
    """A broker answers reads without asking whether it may have been superseded."""
    return [(LeaseKeeper, "fresh", lambda *_: True)]


def _requests_overtake() -> list[Patch]:
    """All requests of a connection are served side by side."""
    return [(RequestOrder, "may_begin", lambda *_: True)]


def _place_for_partition() -> list[Patch]:
    """A batch checked against a partition goes into it, even if a new object has replaced it."""

    def require(self: PartitionRegistry, partition: Partition) -> None:
        self.find(partition.log.partition)

    return [(PartitionRegistry, "require", require)]


def _fence_unread() -> list[Patch]:
    """A broker does not look for its own fence in the metadata log."""
    return [(OwnFence, "follow", lambda *_: None)]


LOG_VARIANTS: dict[str, Breakage] = {
    "no-dedupe": _no_dedupe,
    "no-sequence-check": _no_sequence_check,
    "acknowledge-early": _acknowledge_early,
    "duplicates-at-once": _duplicates_at_once,
    "acknowledge-out-of-order": _acknowledge_out_of_order,
    "no-seal": _no_seal,
    "end-too-low": _end_too_low,
    "replay-skips-slots": _replay_skips_slots,
    "checkpoint-too-new": _checkpoint_too_new,
    "taken-is-mine": _taken_is_mine,
    "unknown-is-lost": _unknown_is_lost,
    "watermark-behind": _watermark_behind,
    "watermark-ahead": _watermark_ahead,
    "forget-producers": _forget_producers,
    "no-lease": _no_lease,
    "requests-overtake": _requests_overtake,
    "fence-unread": _fence_unread,
    "place-for-partition": _place_for_partition,
}
VARIANTS = (
    LOG_VARIANTS
    | GROUP_VARIANTS
    | TRANSACTION_VARIANTS
    | SEGMENT_VARIANTS
    | CLUSTER_VARIANTS
    | HANDOVER_VARIANTS
    | MEMBERSHIP_VARIANTS
)


@contextmanager
def broken(variant: str) -> Iterator[None]:
    """Break Tidelog in the named way while the context lasts."""
    with patched(VARIANTS[variant]()):
        yield
