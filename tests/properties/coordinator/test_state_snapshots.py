"""Snapshots lose no state: a machine restored from any snapshot and the log behind it equals a
machine that has replayed the whole log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.group.machine import GroupMachine
from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerGroupRemoved,
    ConsumerGroupStored,
    ConsumerMemberRemoved,
    ConsumerMemberStored,
    ConsumerSubscription,
    CurrentAssignment,
    CurrentRemoved,
    CurrentStored,
    MemberState,
    TargetEpochRemoved,
    TargetEpochStored,
    TargetRemoved,
    TargetStored,
)
from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetPending,
    OffsetRemoved,
    OffsetStored,
    StoredGroup,
    StoredMember,
    TransactionEnded,
)
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.group.state_table import GroupTable
from tidelog.coordinator.snapshot_format import (
    RecordT,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotOrigin,
    SnapshotPosition,
    StateTable,
)
from tidelog.coordinator.transaction.log_records import (
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
)
from tidelog.coordinator.transaction.machine import TransactionMachine
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.identifiers import LeaderEpoch, ProducerEpoch, ProducerId

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BYTES = st.binary(max_size=12)
# Few names, so that records meet.
NAMES = st.sampled_from(["a", "b", "Ж", ""])
NUMBERS = st.integers(0, 2)
PRODUCERS = st.integers(0, 3)

IDS = st.none() | st.integers(1, 3).map(lambda number: UUID(int=number))
COMMITTED = st.builds(CommittedOffset, INT64, INT32, TEXT, INT64, INT64 | st.just(-1), IDS)
PLACES = {"group_id": NAMES, "topic": NAMES, "partition": NUMBERS}
ASSIGNMENTS = BYTES | st.just(b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + bytes(8))
MEMBERS = st.builds(
    StoredMember, TEXT, st.none() | TEXT, TEXT, TEXT, INT32, INT32, BYTES, ASSIGNMENTS
)
GROUPS = st.builds(
    StoredGroup,
    st.sampled_from(["consumer", "connect", ""]),
    INT32,
    st.none() | TEXT,
    st.none() | TEXT,
    INT64 | st.just(-1),
    st.lists(MEMBERS, max_size=3).map(tuple),
)
GROUP_RECORDS: dict[type, st.SearchStrategy[GroupRecord]] = {
    OffsetStored: st.builds(OffsetStored, committed=COMMITTED, **PLACES),
    OffsetRemoved: st.builds(OffsetRemoved, **PLACES),
    OffsetPending: st.builds(OffsetPending, producer_id=PRODUCERS, committed=COMMITTED, **PLACES),
    TransactionEnded: st.builds(TransactionEnded, PRODUCERS, st.booleans()),
    GroupStored: st.builds(GroupStored, NAMES, GROUPS),
    GroupRemoved: st.builds(GroupRemoved, NAMES),
}


# A member is known by its number: no other has its instance id, or any of its partitions.
MEMBER_NUMBERS = st.integers(0, 3)


def subscription(member: int, is_static: bool, topics: list[str]) -> ConsumerSubscription:
    instance_id = f"i-{member}" if is_static else None
    names = tuple(sorted(set(topics)))
    return ConsumerSubscription(instance_id, None, "c", "h", names, None, 1000 * member, "range")


def assignment(member: int, topics: int) -> Assignment:
    return {UUID(int=number): frozenset({member, member + 10}) for number in range(topics)}


def current(member: int, epoch: int, state: MemberState, topics: int) -> CurrentAssignment:
    revoked = assignment(member + 100, topics // 2)
    return CurrentAssignment(epoch, epoch - 1, state, assignment(member, topics), revoked)


def of_member(kind: type, *more: st.SearchStrategy[object]) -> st.SearchStrategy[GroupRecord]:
    return st.builds(
        lambda group_id, member, *rest: kind(group_id, f"m-{member}", *[f(member) for f in rest]),
        NAMES,
        MEMBER_NUMBERS,
        *more,
    )


SUBSCRIPTIONS = st.builds(
    lambda is_static, topics: lambda member: subscription(member, is_static, topics),
    st.booleans(),
    st.lists(NAMES, max_size=2),
)
ASSIGNED = st.builds(lambda topics: lambda member: assignment(member, topics), NUMBERS)
CURRENTS = st.builds(
    lambda epoch, state, topics: lambda member: current(member, epoch, state, topics),
    INT16,
    st.sampled_from(MemberState),
    NUMBERS,
)
GROUP_RECORDS |= {
    ConsumerGroupStored: st.builds(ConsumerGroupStored, NAMES, INT32, INT64),
    ConsumerGroupRemoved: st.builds(ConsumerGroupRemoved, NAMES),
    ConsumerMemberStored: of_member(ConsumerMemberStored, SUBSCRIPTIONS),
    ConsumerMemberRemoved: of_member(ConsumerMemberRemoved),
    TargetEpochStored: st.builds(TargetEpochStored, NAMES, INT32),
    TargetEpochRemoved: st.builds(TargetEpochRemoved, NAMES),
    TargetStored: of_member(TargetStored, ASSIGNED),
    TargetRemoved: of_member(TargetRemoved),
    CurrentStored: of_member(CurrentStored, CURRENTS),
    CurrentRemoved: of_member(CurrentRemoved),
}


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from([each for each in TransactionState if each < 6]))
    at_most = 0 if state is TransactionState.EMPTY else 4
    partitions = st.builds(EnlistedPartition, NAMES, INT32)
    return Transaction(
        producer_id=ProducerId(draw(INT64)),
        producer_epoch=ProducerEpoch(draw(INT16)),
        state=state,
        timeout_ms=draw(INT32),
        updated_ms=draw(INT64),
        begun_ms=draw(INT64),
        partitions=draw(st.frozensets(partitions, max_size=at_most)),
        previous_producer_id=ProducerId(draw(INT64)),
        next_producer_id=ProducerId(draw(INT64)),
        last_epoch=ProducerEpoch(draw(INT16)),
        ordinal=draw(INT64),
        client_version=draw(INT16),
    )


TRANSACTION_RECORDS = st.builds(TransactionStored, NAMES, transactions()) | st.builds(
    TransactionRemoved, NAMES
)
ORIGIN = SnapshotOrigin("cluster", "__consumer_offsets", UUID(int=7), 3)


class EarlierGroupTable(GroupTable):
    """Groups as releases wrote them before the later columns."""

    schema = pa.schema(  # type: ignore[misc]
        [field for field in GroupTable.schema if field.name not in GroupTable.descriptive]
    )

    def rows(self, records: list[GroupRecord]) -> pa.RecordBatch:
        return GroupTable().rows(records).select(self.schema.names)


class FirstGroupTable(GroupTable):
    """Groups as the first release wrote them."""

    schema = pa.schema(  # type: ignore[misc]
        [field for field in GroupTable.schema if field.name not in GroupTable.added]
    )

    def rows(self, records: list[GroupRecord]) -> pa.RecordBatch:
        return GroupTable().rows(records).select(self.schema.names)


def through_a_snapshot(
    table: StateTable[RecordT],
    records: Iterable[RecordT],
    written_as: StateTable[RecordT] | None = None,
) -> list[RecordT]:
    position = SnapshotPosition(42, LeaderEpoch(5), 1_700_000_000_000)
    encoder = SnapshotEncoder(written_as or table, ORIGIN, position, records)
    while encoder.step():
        pass
    data = b"".join(encoder.finish().pieces)
    decoder = SnapshotDecoder(table, ORIGIN, ORIGIN.key(42), data)
    assert decoder.position == position
    assert decoder.rows == encoder.rows
    found: list[RecordT] = []
    while (step := decoder.step()) is not None:
        found += step
    return found


def group_state(machine: GroupMachine) -> object:
    offsets = machine.offsets
    return (
        dict(machine.stored_groups),
        {group: offsets.of_group(group) for group in offsets.group_ids()},
        # With the order in which producers have something pending in one place: it counts.
        {
            group: {place: list(each.items()) for place, each in places.items()}
            for group, places in offsets._pending.items()
        },
        offsets._producers,
        {group_id: vars_of(group) for group_id, group in machine.consumer_groups.items()},
    )


def vars_of(group: ConsumerGroup) -> object:
    """The whole state that a group has from the log, with its members in order."""
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        list(group.subscriptions.items()),
        group.static_members,
        group._currents,
        group._targets,
        group._holders,
    )


def group_machine(records: Iterable[GroupRecord]) -> GroupMachine:
    machine = GroupMachine(GroupSettings())
    for record in records:
        machine.apply(record)
    return machine


def test_every_kind_of_group_record_is_tried() -> None:
    assert set(GROUP_RECORDS) == {*get_args(GroupRecord)}


@given(st.lists(st.one_of(*GROUP_RECORDS.values()), max_size=40), st.integers(0, 40))
def test_groups_are_restored_from_a_snapshot_and_later_records(
    log: list[GroupRecord], cut: int
) -> None:
    captured = group_machine(log[:cut]).capture()
    restored = group_machine([*through_a_snapshot(GroupTable(), captured), *log[cut:]])
    assert group_state(restored) == group_state(group_machine(log))


@given(st.lists(st.one_of(*GROUP_RECORDS.values()), max_size=40))
def test_earlier_and_later_snapshots_of_groups_say_the_same(log: list[GroupRecord]) -> None:
    now, earlier = GroupTable(), EarlierGroupTable()
    records = list(group_machine(log).capture())
    assert through_a_snapshot(now, records, written_as=earlier) == records
    assert through_a_snapshot(earlier, records, written_as=now) == records
    without_ids = [_without_id(each) for each in records]
    assert through_a_snapshot(now, records, written_as=FirstGroupTable()) == without_ids


def _without_id(record: GroupRecord) -> GroupRecord:
    if isinstance(record, OffsetStored | OffsetPending):
        return record._replace(committed=record.committed._replace(topic_id=None))
    return record


@given(st.lists(st.one_of(*GROUP_RECORDS.values()), max_size=40), st.integers(0, 40))
def test_a_captured_state_stays_while_the_machine_goes_on(log: list[GroupRecord], cut: int) -> None:
    machine = group_machine(log[:cut])
    captured = machine.capture()
    for record in log[cut:]:
        machine.apply(record)
    assert group_state(group_machine(captured)) == group_state(group_machine(log[:cut]))
    machine.release()
    assert group_state(machine) == group_state(group_machine(log))


def transaction_machine(records: Iterable[TransactionRecord]) -> TransactionMachine:
    machine = TransactionMachine(TransactionCoordinatorSettings(), 0)
    for record in records:
        machine.apply(record)
    return machine


def transaction_state(machine: TransactionMachine) -> object:
    return machine.transactions, machine._ongoing, machine._awaited


@given(st.lists(TRANSACTION_RECORDS, max_size=30), st.integers(0, 30))
def test_transactions_are_restored_from_a_snapshot_and_later_records(
    log: list[TransactionRecord], cut: int
) -> None:
    machine = transaction_machine(log[:cut])
    captured = machine.capture()
    for record in log[cut:]:
        machine.apply(record)
    machine.release()
    restored = transaction_machine([*through_a_snapshot(TransactionTable(), captured), *log[cut:]])
    assert transaction_state(restored) == transaction_state(transaction_machine(log))
    assert transaction_state(machine) == transaction_state(restored)


@given(st.lists(st.one_of(GROUP_RECORDS[GroupStored], GROUP_RECORDS[OffsetStored]), max_size=5))
def test_a_record_without_columns_of_its_own_is_kept_in_the_form_of_the_log(
    log: list[GroupRecord],
) -> None:
    removed: list[GroupRecord] = [GroupRemoved("a"), OffsetRemoved("a", "t", 1)]
    assert through_a_snapshot(GroupTable(), [*removed, *log, *removed]) == [
        *removed,
        *log,
        *removed,
    ]


@pytest.mark.parametrize("begun_ms", [-1, 0, 2**63 - 1, -(2**63)])
def test_times_at_the_ends_are_kept(begun_ms: int) -> None:
    stored = TransactionStored("id", _PLAIN._replace(begun_ms=begun_ms, updated_ms=begun_ms))
    assert through_a_snapshot(TransactionTable(), [stored]) == [stored]


_PLAIN = Transaction(
    producer_id=ProducerId(1),
    producer_epoch=ProducerEpoch(2),
    state=TransactionState.COMPLETE_COMMIT,
    timeout_ms=60_000,
    updated_ms=0,
)
