"""Tidelog broken on purpose, each in one place: the simulation must notice every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.group_variants import GROUP_VARIANTS
from tests.simulation.patches import Breakage, Patch, patched
from tests.simulation.segment_variants import SEGMENT_VARIANTS
from tests.simulation.transaction_variants import TRANSACTION_VARIANTS
from tidelog.broker.dispatch.request_order import RequestOrder
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.coordinator.cluster.membership import takeover
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.membership.own_fence import OwnFence
from tidelog.identifiers import Slot
from tidelog.storage import sequence
from tidelog.wal.format.object_format import SlotIndex
from tidelog.wal.log import partition_log
from tidelog.wal.log.extents import SlotEffect
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_state import ProducerState
from tidelog.wal.recover import fencing
from tidelog.wal.recover.fencing import WalEnd, _Sealer
from tidelog.wal.write.slot_waiters import Told
from tidelog.wal.write.writer import WalWriter


def _no_dedupe() -> list[Patch]:
    """Every batch of an idempotent producer is appended, whatever its sequence."""
    return [
        (ProducerState, "find_duplicate", lambda *_: None),
        (partition_log, "refuse_if_invalid", lambda _: None),
    ]


def _no_sequence_check() -> list[Patch]:
    """Repeated batches are recognised, but gaps and disorder are let in."""
    return [(partition_log, "refuse_if_invalid", lambda _: None)]


def _acknowledge_early() -> list[Patch]:
    """Nobody waits for the slot to be durable."""

    def durable(self: WalWriter, slot: Slot) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def tell(self: WalWriter, slot: Slot, told: Told) -> None:
        asyncio.get_running_loop().call_soon(told, None)

    return [(WalWriter, "durable", durable), (WalWriter, "tell", tell)]


def _acknowledge_out_of_order() -> list[Patch]:
    """A slot counts as soon as its own put is confirmed."""
    in_order = WalWriter._acknowledge

    def acknowledge(self: WalWriter) -> int:
        for slot in sorted(self._confirmed):
            self._waiters.release(slot)
        return in_order(self)

    return [(WalWriter, "_acknowledge", acknowledge)]


def _no_seal() -> list[Patch]:
    """A take-over believes the first gap that it sees, and puts nothing there."""

    async def seal(store: Any, clock: Any, entropy: Any, dead: Any, _: int, told: Slot) -> WalEnd:
        sealer = _Sealer(store, clock, entropy, dead, told)
        return WalEnd(await sealer.guess_tail(await sealer.floor()))

    return [(takeover, "seal", seal)]


def _end_too_low() -> list[Patch]:
    """A take-over stops reading one slot before the seal."""
    right = fencing.seal

    async def seal(*arguments: Any) -> WalEnd:
        return WalEnd(Slot(max(0, (await right(*arguments)).slot - 1)))

    return [(takeover, "seal", seal)]


def _replay_skips_slots() -> list[Patch]:
    """Recovery passes over what lies in some slots."""
    right = SlotIndex.entries

    def entries(self: SlotIndex, *arguments: Any) -> Any:
        return () if self.header.slot % 8 == 5 else right(self, *arguments)

    return [(SlotIndex, "entries", entries)]


def _checkpoint_too_new() -> list[Patch]:
    """A checkpoint holds a part of the slot with which replay begins."""
    return [(WalWriter, "begin_slot", lambda self: self.slot)]


def _taken_is_mine() -> list[Patch]:
    """A refused put counts as the writer's own earlier attempt."""

    async def read_back_taken(self: Any) -> sequence.AppendResult:
        return sequence.Mine("")

    return [(sequence._Append, "_read_back_taken", read_back_taken)]


def _unknown_is_lost() -> list[Patch]:
    """An attempt with an unknown outcome counts as not applied, whatever lies there."""

    async def read_back(self: Any) -> sequence.AppendResult | None:
        return None

    return [(sequence._Append, "_read_back", read_back)]


def _watermark_behind() -> list[Patch]:
    """The high watermark is one below the durable end."""
    right = PartitionLog.advance

    def advance(self: PartitionLog, slot: SlotEffect) -> None:
        right(self, slot)
        if slot.extents:
            self.high_watermark -= 1

    return [(PartitionLog, "advance", advance)]


def _watermark_ahead() -> list[Patch]:
    """What is appended is shown before it is durable."""
    right = PartitionLog._apply_batch

    def apply_batch(self: PartitionLog, *arguments: Any) -> None:
        right(self, *arguments)
        self.high_watermark = self._next_offset

    return [(PartitionLog, "_apply_batch", apply_batch)]


def _forget_producers() -> list[Patch]:
    """A new owner knows nothing of producers."""
    right = PartitionLog.begin_tenure

    def begin_tenure(self: PartitionLog, leader_epoch: Any) -> None:
        right(self, leader_epoch)
        self._producers.clear()

    return [(PartitionLog, "begin_tenure", begin_tenure)]


def _no_lease() -> list[Patch]:
    """A broker answers reads without asking whether it may have been superseded."""
    return [(LeaseKeeper, "fresh", lambda *_: True)]


def _requests_overtake() -> list[Patch]:
    """All requests of a connection are served side by side."""
    return [(RequestOrder, "admits", lambda *_: True)]


def _place_for_partition() -> list[Patch]:
    """What was checked against a partition goes into it, also when another object is there."""

    def require(self: PartitionRegistry, partition: Partition) -> None:
        self.find(partition.log.partition)

    return [(PartitionRegistry, "require", require)]


def _fence_unread() -> list[Patch]:
    """A broker does not look for its own fence in the metadata log."""
    return [(OwnFence, "_follow", lambda *_: None)]


LOG_VARIANTS: dict[str, Breakage] = {
    "no-dedupe": _no_dedupe,
    "no-sequence-check": _no_sequence_check,
    "acknowledge-early": _acknowledge_early,
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
VARIANTS = LOG_VARIANTS | GROUP_VARIANTS | TRANSACTION_VARIANTS | SEGMENT_VARIANTS


@contextmanager
def broken(variant: str) -> Iterator[None]:
    """Break it in the named way while the context lasts."""
    with patched(VARIANTS[variant]()):
        yield
