"""Group coordinators broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.world.patches import Breakage, Patch, everywhere
from tidelog.broker.coordinate.internal_log import InternalPartition
from tidelog.coordinator import log_codec, runtime
from tidelog.coordinator.group.commands import CommitOffsets
from tidelog.coordinator.group.records.log_records import OffsetStored
from tidelog.coordinator.group.requests import group_offsets
from tidelog.coordinator.group.requests.classic_rebalance import Rebalancer
from tidelog.coordinator.group.state.classic_group import ClassicGroup, Member
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.snapshots import SnapshottedLog, StateSnapshots
from tidelog.protocol.error_codes import ErrorCode

_FENCING = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH}
)


def _stale_commits() -> list[Patch]:
    """A commit counts even if it comes from an earlier generation."""
    right = group_offsets.commit_error

    def commit_error(group: ClassicGroup, commit: CommitOffsets) -> ErrorCode:
        error = right(group, commit)
        return ErrorCode.NONE if error in _FENCING else error

    return everywhere("commit_error", commit_error)


def _answers_before_durable() -> list[Patch]:
    """A coordinator answers at once, without waiting until its records are durable."""
    return [(InternalPartition, "is_durable", lambda *_: True)]


def _offsets_forgotten() -> list[Patch]:
    """A new coordinator does not read all of the offsets that were committed."""
    right_restore = StateSnapshots.restore

    def is_read(record: object) -> bool:
        return not isinstance(record, OffsetStored) or record.committed.offset % 3 != 0

    def decode_objects(*arguments: Any) -> list[Any]:
        return list(filter(is_read, log_codec.decode_objects(*arguments)))

    async def restore(self: StateSnapshots[Any], apply: Callable[[Any], None]) -> Any:
        return await right_restore(self, lambda record: apply(record) if is_read(record) else None)

    return [(runtime, "decode_objects", decode_objects), (StateSnapshots, "restore", restore)]


class _LogWithOneMore:
    """A wrapper of a coordinator's log that reports an end one record too far."""

    def __init__(self, log: SnapshottedLog) -> None:
        self.log = log

    @property
    def next_offset(self) -> int:
        return self.log.next_offset + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


def _snapshot_ahead() -> list[Patch]:
    """A coordinator's snapshot claims one record more of the log than it holds (H6)."""
    right = StateSnapshots.write

    async def write(self: StateSnapshots[Any], machine: Any, log: SnapshottedLog) -> None:
        await right(self, machine, _LogWithOneMore(log))

    return [(StateSnapshots, "write", write)]


def _generation_restarts() -> list[Patch]:
    """A new coordinator counts generations from the beginning."""
    right = ClassicGroup.from_stored.__func__  # type: ignore[attr-defined]

    def from_stored(cls: type[ClassicGroup], *arguments: Any) -> ClassicGroup:
        group: ClassicGroup = right(cls, *arguments)
        group.generation = 0
        return group

    return [(ClassicGroup, "from_stored", classmethod(from_stored))]


def _same_for_all() -> list[Patch]:
    """Every member gets the assignment of the group's leader."""
    right = Rebalancer.assignment_reply

    def assignment_reply(self: Rebalancer, group: ClassicGroup, member: Member) -> Any:
        return right(self, group, group.members.get(group.leader or "", member))

    return [(Rebalancer, "assignment_reply", assignment_reply)]


def _given_while_had() -> list[Patch]:
    """A member gets partitions that another member has yet to give up (KIP-848)."""
    return [(ConsumerGroup, "is_free", lambda *_: True)]


def _stale_member_epochs() -> list[Patch]:
    """A former member of a consumer group may commit for ever."""
    right = group_offsets.consumer_commit_error

    def commit_error(group: ConsumerGroup, commit: Any) -> ErrorCode:
        error = right(group, commit)
        return ErrorCode.NONE if error in _FENCING else error

    return everywhere("consumer_commit_error", commit_error)


GROUP_VARIANTS: dict[str, Breakage] = {
    "stale-commits": _stale_commits,
    "answers-before-durable": _answers_before_durable,
    "offsets-forgotten": _offsets_forgotten,
    "snapshot-ahead": _snapshot_ahead,
    "generation-restarts": _generation_restarts,
    "same-for-all": _same_for_all,
    "given-while-had": _given_while_had,
    "stale-member-epochs": _stale_member_epochs,
}
