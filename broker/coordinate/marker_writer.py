"""Writes the markers that end transactions into partitions that this broker leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tidelog.broker.coordinate.coordinator_set import CoordinatorSet
from tidelog.broker.partitions.log_writer import EndedTransaction, LogWriter
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.clock import Clock
from tidelog.coordinator.group.commands import Command as GroupCommand
from tidelog.coordinator.group.commands import Reply as GroupReply
from tidelog.coordinator.group.records.log_records import GroupRecord
from tidelog.coordinator.runtime import RuntimeState
from tidelog.identifiers import Slot
from tidelog.protocol.error_codes import ErrorCode
from tidelog.wal.log.producer_state import AppendRefused

GroupCoordinators: TypeAlias = CoordinatorSet[GroupCommand, GroupRecord, GroupReply]


class MarkerWriter:
    """Appends transaction markers.

    The writer reports a marker in a partition of `__consumer_offsets` to its group coordinator at
    once. The coordinator then settles the transaction's pending offsets.
    """

    def __init__(
        self, log_writer: LogWriter, groups: Callable[[], GroupCoordinators], clock: Clock
    ) -> None:
        self._log_writer = log_writer
        self._groups = groups
        self._clock = clock

    def write(self, partition: Partition, ended: EndedTransaction) -> Slot:
        """Append the marker unless the log has it; it counts when the slot is durable.

        Raises PartitionError: nothing was appended. TidelogError: the incarnation has ended.
        """
        coordinator = self._groups().at(partition.log.partition)
        if coordinator is not None and coordinator.state is not RuntimeState.READY:
            raise PartitionError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if coordinator.state is RuntimeState.LOADING
                else ErrorCode.KAFKA_STORAGE_ERROR,
                f"the coordinator of {partition} is {coordinator.state.name.lower()}",
            )
        try:
            placed = self._log_writer.append_marker(partition, ended, self._clock.time_ms())
        except AppendRefused as error:
            raise PartitionError(ErrorCode(error.error_code), str(error)) from error
        if coordinator is not None and not placed.appended.duplicate:
            coordinator.transaction_ended(ended.producer_id, placed.slot, is_commit=ended.is_commit)
        return placed.slot
