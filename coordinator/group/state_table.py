"""The state of a group coordinator as the table `tidelog.groups`.

It has groups with their members and assignments, committed offsets, and offsets of open
transactions. A row of another kind holds a record in the log's form; those of consumer groups
(KIP-848) also have its fields as columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.coordinator.group.records.consumer_columns import (
    CONSUMER_COLUMN_NAMES,
    CONSUMER_COLUMNS,
    consumer_columns,
)
from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    GroupRecord,
    GroupStored,
    OffsetPending,
    OffsetStored,
    StoredGroup,
    StoredMember,
    TransactionEnded,
    UnknownGroupRecord,
    decode_record,
    encode_record,
)
from tidelog.coordinator.group.records.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    assigned_partitions,
)
from tidelog.coordinator.state_columns import (
    MILLISECONDS,
    PARTITIONS,
    column,
    integers,
    integers_or_null,
    numbers_in,
    texts_in,
)
from tidelog.identifiers import TopicId

GROUP: Final = "group"
OFFSET: Final = "offset"
PENDING_OFFSET: Final = "pending offset"
RECORD: Final = "record"

_INT32, _INT64 = pa.int32(), pa.int64()
_MEMBER = pa.struct(
    [
        column("member_id", pa.string()),
        column("instance_id", pa.string(), nullable=True),
        column("client_id", pa.string()),
        column("client_host", pa.string()),
        column("rebalance_timeout_ms", _INT32),
        column("session_timeout_ms", _INT32),
        column("subscription", pa.binary()),
        column("assignment", pa.binary()),
        column("partitions", PARTITIONS, nullable=True),
    ]
)
_MEMBERS = pa.list_(pa.field("element", _MEMBER, nullable=False))

_Columns: TypeAlias = dict[str, pa.Array]
_OffsetRecord: TypeAlias = OffsetStored | OffsetPending


class GroupTable:
    """One row a group, a committed offset, or an offset of an open transaction.

    A column that a row's kind does not use is null.
    """

    name: Final = "tidelog.groups"
    schema: Final = pa.schema(
        [
            column("kind", pa.string()),
            column("group_id", pa.string(), nullable=True),
            column("state", pa.string(), nullable=True),
            column("protocol_type", pa.string(), nullable=True),
            column("protocol", pa.string(), nullable=True),
            column("generation", _INT32, nullable=True),
            column("leader", pa.string(), nullable=True),
            column("state_since", MILLISECONDS, nullable=True),
            column("members", _MEMBERS, nullable=True),
            column("topic", pa.string(), nullable=True),
            column("partition", _INT32, nullable=True),
            column("offset", _INT64, nullable=True),
            column("leader_epoch", _INT32, nullable=True),
            column("metadata", pa.string(), nullable=True),
            column("committed_at", MILLISECONDS, nullable=True),
            column("expires_at", MILLISECONDS, nullable=True),
            column("topic_id", pa.string(), nullable=True),
            column("producer_id", _INT64, nullable=True),
            column("record_key", pa.binary(), nullable=True),
            column("record_value", pa.binary(), nullable=True),
            *CONSUMER_COLUMNS,
        ]
    )
    descriptive: Final = CONSUMER_COLUMN_NAMES
    added: Final = frozenset({"topic_id"})

    def rows(self, records: list[GroupRecord]) -> pa.RecordBatch:
        """The records as rows, in order."""
        batches = []
        for kind, run in groupby(records, _kind_of):
            found = list(run)
            columns = _columns_of(kind, found)
            columns["kind"] = pa.repeat(pa.scalar(kind), len(found))
            batches.append(
                pa.RecordBatch.from_arrays(
                    [
                        columns.get(field.name, pa.nulls(len(found), field.type))
                        for field in self.schema
                    ],
                    schema=self.schema,
                )
            )
        return pa.concat_batches(batches)

    def records(self, rows: pa.RecordBatch) -> Iterator[GroupRecord]:
        """The records of some rows, in order.

        Raises UnknownGroupRecord for a row of another kind.
        """
        kinds = rows.column("kind")
        start = 0
        while start < len(kinds):
            kind = kinds[start].as_py()
            same = pc.equal(kinds.slice(start), kind)
            length = pc.index(same, False).as_py()
            run = rows.slice(start, length if length >= 0 else None)
            columns = {name: run.column(name) for name in run.schema.names}
            yield from _records_of(kind, columns)
            start += run.num_rows


def _kind_of(record: GroupRecord) -> str:
    match record:
        case GroupStored():
            return GROUP
        case OffsetStored():
            return OFFSET
        case OffsetPending():
            return PENDING_OFFSET
        case _:
            return RECORD


def _columns_of(kind: str, records: Sequence[GroupRecord]) -> _Columns:
    """The columns of rows of one kind; all records are of that kind."""
    if kind == GROUP:
        return _group_columns([each for each in records if isinstance(each, GroupStored)])
    if kind == OFFSET:
        return _offset_columns([each for each in records if isinstance(each, OffsetStored)])
    if kind == PENDING_OFFSET:
        pending = [each for each in records if isinstance(each, OffsetPending)]
        return _offset_columns(pending) | {
            "producer_id": integers([each.producer_id for each in pending], _INT64)
        }
    encoded = [encode_record(record) for record in records]
    groups = [each.group_id for each in records if not isinstance(each, TransactionEnded)]
    return {
        "group_id": pa.array(groups, pa.string()),
        "record_key": pa.array([key for key, _ in encoded], pa.binary()),
        "record_value": pa.array([value for _, value in encoded], pa.binary()),
        **consumer_columns(records),
    }


def _records_of(kind: str | None, columns: _Columns) -> Iterator[GroupRecord]:
    """The records of rows of one kind."""
    if kind == GROUP:
        return _groups_in(columns)
    if kind == OFFSET:
        return map(OffsetStored, *_places_in(columns), _committed_in(columns))
    if kind == PENDING_OFFSET:
        producers = numbers_in(columns["producer_id"])
        return map(OffsetPending, producers, *_places_in(columns), _committed_in(columns))
    if kind == RECORD:
        keys, values = columns["record_key"].to_pylist(), columns["record_value"].to_pylist()
        return map(decode_record, keys, values)
    raise UnknownGroupRecord(f"a row has the unknown kind {kind!r}")


# Groups.


def _group_columns(records: Sequence[GroupStored]) -> _Columns:
    groups = [record.group for record in records]
    return {
        "group_id": pa.array([record.group_id for record in records], pa.string()),
        "state": pa.array(["Stable" if each.members else "Empty" for each in groups], pa.string()),
        "protocol_type": pa.array([each.protocol_type for each in groups], pa.string()),
        "protocol": pa.array([each.protocol for each in groups], pa.string()),
        "generation": integers([each.generation for each in groups], _INT32),
        "leader": pa.array([each.leader for each in groups], pa.string()),
        "state_since": integers_or_null([each.state_timestamp_ms for each in groups], MILLISECONDS),
        "members": pa.array([_member_rows(each) for each in groups], _MEMBERS),
    }


def _member_rows(group: StoredGroup) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for member in group.members:
        assigned = None
        if group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            assigned = assigned_partitions(member.assignment)
        rows.append(
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "session_timeout_ms": member.session_timeout_ms,
                "subscription": member.subscription,
                "assignment": member.assignment,
                "partitions": None
                if assigned is None
                else [{"topic": topic, "partition": number} for topic, number in assigned],
            }
        )
    return rows


def _groups_in(columns: _Columns) -> Iterator[GroupStored]:
    for group_id, protocol_type, generation, protocol, leader, since_ms, members in zip(
        _required(columns, "group_id"),
        _required(columns, "protocol_type"),
        numbers_in(columns["generation"]),
        texts_in(columns["protocol"]),
        texts_in(columns["leader"]),
        numbers_in(columns["state_since"]),
        columns["members"].to_pylist(),
        strict=True,
    ):
        stored = tuple(
            [
                StoredMember(
                    each["member_id"],
                    each["instance_id"],
                    each["client_id"],
                    each["client_host"],
                    each["rebalance_timeout_ms"],
                    each["session_timeout_ms"],
                    each["subscription"],
                    each["assignment"],
                )
                for each in members
            ]
        )
        group = StoredGroup(protocol_type, generation, protocol, leader, since_ms, stored)
        yield GroupStored(group_id, group)


# Offsets.


def _offset_columns(records: Sequence[_OffsetRecord]) -> _Columns:
    committed = [record.committed for record in records]
    return {
        "group_id": pa.array([record.group_id for record in records], pa.string()),
        "topic": pa.array([record.topic for record in records], pa.string()),
        "partition": integers([record.partition for record in records], _INT32),
        "offset": integers([each.offset for each in committed], _INT64),
        "leader_epoch": integers_or_null([each.leader_epoch for each in committed], _INT32),
        "metadata": pa.array([each.metadata for each in committed], pa.string()),
        "committed_at": integers([each.commit_timestamp_ms for each in committed], MILLISECONDS),
        "expires_at": integers_or_null(
            [each.expire_timestamp_ms for each in committed], MILLISECONDS
        ),
        "topic_id": pa.array(
            [None if each.topic_id is None else str(each.topic_id) for each in committed],
            pa.string(),
        ),
    }


def _places_in(columns: _Columns) -> tuple[list[str], list[str], list[int]]:
    groups, topics = _required(columns, "group_id"), _required(columns, "topic")
    return groups, topics, numbers_in(columns["partition"])


def _committed_in(columns: _Columns) -> Iterator[CommittedOffset]:
    return map(
        CommittedOffset,
        numbers_in(columns["offset"]),
        numbers_in(columns["leader_epoch"]),
        _required(columns, "metadata"),
        numbers_in(columns["committed_at"]),
        numbers_in(columns["expires_at"]),
        _topic_ids_in(columns["topic_id"]),
    )


def _topic_ids_in(column_: pa.Array) -> list[TopicId | None]:
    known = {text: UUID(text) for text in pc.unique(column_).to_pylist() if text is not None}
    return [None if text is None else known[text] for text in texts_in(column_)]


def _required(columns: _Columns, name: str) -> list[str]:
    found = texts_in(columns[name])
    if None in found:
        raise UnknownGroupRecord(f"a row has no {name}")
    return found  # type: ignore[return-value]
