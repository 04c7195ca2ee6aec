"""The fields of consumer groups' records (KIP-848) as columns for people and other tools.

Tidelog restores a group from the records' bytes in the same rows, and does not read these columns.
So new ones may be added, and an older Tidelog ignores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerGroupStored,
    ConsumerMemberStored,
    CurrentStored,
    TargetEpochStored,
    TargetStored,
)
from tidelog.coordinator.state_columns import column

CONSUMER_GROUP: Final = "consumer group"
CONSUMER_MEMBER: Final = "consumer member"
TARGET_EPOCH: Final = "target epoch"
TARGET_ASSIGNMENT: Final = "target assignment"
CURRENT_ASSIGNMENT: Final = "current assignment"

_PARTITION: Final = pa.struct([column("topic_id", pa.string()), column("partition", pa.int32())])
_PARTITIONS: Final = pa.list_(pa.field("element", _PARTITION, nullable=False))
_TEXTS: Final = pa.list_(pa.field("element", pa.string(), nullable=False))

CONSUMER_COLUMNS: Final = tuple(
    [
        column(name, kind, nullable=True)
        for name, kind in (
            ("record_kind", pa.string()),
            ("epoch", pa.int32()),
            ("member_id", pa.string()),
            ("instance_id", pa.string()),
            ("rack_id", pa.string()),
            ("client_id", pa.string()),
            ("client_host", pa.string()),
            ("subscribed_topics", _TEXTS),
            ("subscribed_regex", pa.string()),
            ("server_assignor", pa.string()),
            ("rebalance_timeout_ms", pa.int32()),
            ("member_state", pa.string()),
            ("assigned_partitions", _PARTITIONS),
            ("revoking_partitions", _PARTITIONS),
        )
    ]
)
CONSUMER_COLUMN_NAMES: Final = frozenset([field.name for field in CONSUMER_COLUMNS])


def consumer_columns(records: Sequence[object]) -> dict[str, pa.Array]:
    """A row for each record; rows of other kinds are null."""
    rows = [_facts(record) for record in records]
    return {
        field.name: pa.array([row.get(field.name) for row in rows], field.type)
        for field in CONSUMER_COLUMNS
    }


def _facts(record: object) -> dict[str, Any]:
    match record:
        case ConsumerGroupStored(_, epoch, _):
            return {"record_kind": CONSUMER_GROUP, "epoch": epoch}
        case TargetEpochStored(_, epoch):
            return {"record_kind": TARGET_EPOCH, "epoch": epoch}
        case ConsumerMemberStored(_, member_id, said):
            return {
                "record_kind": CONSUMER_MEMBER,
                "member_id": member_id,
                "instance_id": said.instance_id,
                "rack_id": said.rack_id,
                "client_id": said.client_id,
                "client_host": said.client_host,
                "subscribed_topics": said.topic_names,
                "subscribed_regex": said.topic_regex,
                "server_assignor": said.server_assignor,
                "rebalance_timeout_ms": said.rebalance_timeout_ms,
            }
        case TargetStored(_, member_id, target):
            return {
                "record_kind": TARGET_ASSIGNMENT,
                "member_id": member_id,
                "assigned_partitions": _laid_out(target),
            }
        case CurrentStored(_, member_id, current):
            return {
                "record_kind": CURRENT_ASSIGNMENT,
                "epoch": current.epoch,
                "member_id": member_id,
                "member_state": current.state.name,
                "assigned_partitions": _laid_out(current.assigned),
                "revoking_partitions": _laid_out(current.pending_revocation),
            }
        case _:
            return {}


def _laid_out(assignment: Assignment) -> list[dict[str, object]]:
    return [
        {"topic_id": str(topic_id), "partition": partition}
        for topic_id, partitions in sorted(assignment.items())
        for partition in sorted(partitions)
    ]
