"""Transactions broken on purpose, on the coordinator's side and on the partitions'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.variants.group_variants import GROUP_VARIANTS
from tests.simulation.world.owners import OWNER, Owner
from tests.simulation.world.patches import Breakage, Patch, everywhere
from tidelog.broker.coordinate.marker_delivery import MarkerDelivery, ended_transaction
from tidelog.broker.coordinate.marker_writer import MarkerWriter
from tidelog.broker.coordinate.transaction_admission import Admissions, admissions_of
from tidelog.broker.partitions.partitions import PartitionError, PartitionRegistry
from tidelog.coordinator.group.records.log_records import TransactionEnded
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.runtime import CoordinatorRefused, CoordinatorRuntime, RuntimeState
from tidelog.coordinator.transaction import enlistment
from tidelog.protocol.error_codes import ErrorCode
from tidelog.wal.log import producer_state
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_state import Attempt, MarkerAttempt, ProducerState
from tidelog.wal.log.transactions import Transactions

_LATE_SECONDS = 0.2


def _stable_offset_ahead() -> list[Patch]:
    """The last stable offset is one record too high."""

    def last_stable_offset(self: PartitionLog) -> int:
        return min(self.first_undecided_offset + 1, self.high_watermark)

    return [(PartitionLog, "last_stable_offset", property(last_stable_offset))]


def _markers_first() -> list[Patch]:
    """Markers are written before the decision that they follow from."""
    writers: dict[Owner | None, tuple[MarkerWriter, PartitionRegistry]] = {}
    right_init, right_carry_out = MarkerDelivery.__init__, CoordinatorRuntime.carry_out

    def init(
        self: MarkerDelivery, writer: MarkerWriter, partitions: PartitionRegistry, *others: Any
    ) -> None:
        right_init(self, writer, partitions, *others)
        writers[OWNER.get()] = writer, partitions

    def carry_out(self: CoordinatorRuntime[Any, Any, Any], decision: Any) -> None:
        markers = getattr(decision, "markers", ())
        if not markers or not decision.replies:
            right_carry_out(self, decision)
            return
        writer, partitions = writers[OWNER.get()]
        for each in markers:
            for place in sorted(each.partitions):
                try:
                    writer.write(partitions.named(*place), ended_transaction(each))
                except PartitionError:
                    continue

        def later() -> None:
            if self.state is RuntimeState.READY:
                right_carry_out(self, decision)

        asyncio.get_running_loop().call_later(_LATE_SECONDS, later)

    return [
        (MarkerDelivery, "__init__", init),
        (CoordinatorRuntime, "carry_out", carry_out),
    ]


def _no_epoch_fencing() -> list[Patch]:
    """No partition compares the epoch of a producer."""
    right = enlistment.identity_error

    def identity_error(*arguments: Any) -> ErrorCode:
        error = right(*arguments)
        return ErrorCode.NONE if error is ErrorCode.PRODUCER_FENCED else error

    return [
        *everywhere("identity_error", identity_error),
        _without_refusals(producer_state.is_fenced),
    ]


def _no_dedupe() -> list[Patch]:
    """A batch that is repeated is appended again."""
    return [
        (ProducerState, "find_duplicate", lambda *_: None),
        _without_refusals(producer_state.is_out_of_order, producer_state.begins_epoch_late),
    ]


def _without_refusals(*rules: Callable[[Attempt], bool]) -> Patch:
    """A partition appends batches that break these rules."""
    left = tuple(each for each in producer_state.REFUSALS if each[0] not in rules)
    return producer_state, "REFUSALS", left


def _late_markers_applied() -> list[Patch]:
    """A repeated marker ends any transaction that is open by then (H1)."""
    return [(MarkerAttempt, "is_late_duplicate", property(lambda _: False))]


def _promoted_on_abort() -> list[Patch]:
    """The offsets of aborted transactions count."""
    right = CommittedOffsets.end

    def end(self: CommittedOffsets, record: TransactionEnded) -> None:
        right(self, TransactionEnded(record.producer_id, commit=True))

    return [(CommittedOffsets, "end", end)]


def _unstable_offsets_shown() -> list[Patch]:
    """No reader has to wait for offsets that a transaction is about to change."""
    return [(CommittedOffsets, "pending_places", lambda *_: ())]


def _aborted_index_lost() -> list[Patch]:
    """A new owner does not know which transactions were aborted."""
    right = Transactions.__init__

    def init(self: Transactions, open_transactions: Any, aborted: Any) -> None:
        right(self, open_transactions, ())

    return [(Transactions, "__init__", init)]


def _stale_admission_raises() -> list[Patch]:
    """A coordinator's refusal for want of a fresh lease is no answer but a failure."""

    def admit_at_once(self: Admissions, wanted: Any, partitions: Any) -> Any:
        try:
            answer = self.ask(wanted, partitions)
        except CoordinatorRefused:
            return None
        return admissions_of(answer.result(), partitions) if answer.done() else None

    return [(Admissions, "admit_at_once", admit_at_once)]


TRANSACTION_VARIANTS: dict[str, Breakage] = {
    "stable-offset-ahead": _stable_offset_ahead,
    "markers-first": _markers_first,
    "no-epoch-fencing": _no_epoch_fencing,
    "no-transactional-dedupe": _no_dedupe,
    "late-markers-applied": _late_markers_applied,
    "promoted-on-abort": _promoted_on_abort,
    "unstable-offsets-shown": _unstable_offsets_shown,
    "aborted-index-lost": _aborted_index_lost,
    "stale-admission-raises": _stale_admission_raises,
    "replies-before-durable": GROUP_VARIANTS["answers-before-durable"],
}
