"""The coordinators' states from the bucket: the newest snapshot, then the log behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.reading import BucketAccess, BucketView
from tidelog.bucket.views.tails import TailReader
from tidelog.concurrency import read_all
from tidelog.coordinator.group.machine import GroupMachine
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state_table import GroupTable
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import (
    GROUP_CODEC,
    GROUP_TOPIC,
    TRANSACTION_CODEC,
    TRANSACTION_TOPIC,
)
from tidelog.coordinator.log_codec import Codec, decode_log
from tidelog.coordinator.snapshot_format import ROWS_A_STEP, StateTable
from tidelog.coordinator.snapshots import apply_snapshot
from tidelog.coordinator.transaction.machine import TransactionMachine
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.errors import CorruptObject, TidelogError
from tidelog.identifiers import TopicPartition
from tidelog.storage.superseded import required
from tidelog.wal.read.verify import VerifiedBatches

STATES_AT_ONCE_MAX = 8

RecordT = TypeVar("RecordT")


class _Machine(Protocol):
    """A coordinator, of which only the state is used."""

    def apply(self, record: Any) -> None: ...
    def capture(self) -> Iterator[Any]: ...


class StateKind(NamedTuple):
    """One kind of coordinator: the place of its state, and the parts that restore it."""

    topic: str
    table: StateTable[Any]
    codec: Codec[Any]
    machine: Callable[[], _Machine]


TRANSACTIONS: Final = StateKind(
    TRANSACTION_TOPIC,
    TransactionTable(),
    TRANSACTION_CODEC,
    lambda: TransactionMachine(TransactionCoordinatorSettings(), 0),
)
GROUPS: Final = StateKind(
    GROUP_TOPIC, GroupTable(), GROUP_CODEC, lambda: GroupMachine(GroupSettings())
)


async def transactions(bucket: Bucket) -> pa.Table:
    """The states of all transactional ids, as in `docs/formats/state.md`.

    Raises CorruptObject and the errors of `Bucket.view`.
    """
    return await _all_states(bucket, TRANSACTIONS)


async def groups(bucket: Bucket) -> pa.Table:
    """Groups, their members and committed offsets, as in `docs/formats/state.md`.

    Raises CorruptObject and the errors of `Bucket.view`.
    """
    return await _all_states(bucket, GROUPS)


async def group_offsets(bucket: Bucket, group_ids: Iterable[str]) -> pa.Table:
    """The committed offsets of some groups, as rows of `groups`; also those of other groups.

    Only the coordinators of these groups are read. Raises the errors of `groups`.
    """
    wanted = list(group_ids)

    async def read() -> pa.Table:
        topic = (await bucket.refresh()).topic_named(GROUPS.topic)
        count = 0 if topic is None else topic.partition_count
        view = await bucket.view_partitions(
            TopicPartition(topic.topic_id, partition_for(group_id, count))
            for group_id in wanted
            if topic is not None
        )
        return await read_states(bucket.access, bucket.tails, view, GROUPS)

    table = await bucket.read_consistently(read)
    return table.filter(pc.equal(table.column("kind"), "offset"))


async def _all_states(bucket: Bucket, kind: StateKind) -> pa.Table:
    async def read() -> pa.Table:
        known = (await bucket.refresh()).topic_named(kind.topic) is not None
        view = await bucket.view(*([kind.topic] if known else []))
        return await read_states(bucket.access, bucket.tails, view, kind)

    return await bucket.read_consistently(read)


async def restore(
    access: BucketAccess,
    tails: TailReader,
    view: PartitionView,
    kind: StateKind,
    apply: Callable[[Any], None],
) -> None:
    """Apply the records of a state as of the view's high watermark: snapshot first, then log.

    Raises MissingObject if the bucket has changed since or an object is lost, other CorruptObjects,
    UnsupportedFormat, StoreError.
    """
    topic = access.cluster.state.topics[view.partition.topic_id]
    begin = view.table_next
    if begin > 0:
        origin = access.origin(topic, view.partition.partition)
        key = origin.key(begin)
        with required():
            data = (await access.store.get(key)).data
        await apply_snapshot(access.offload, kind.table, origin, key, data, apply)
    if (view.tail.base_offset or 0) > begin:
        why = f"the log of {view} begins at {view.tail.base_offset}, and no snapshot reaches there"
        raise CorruptObject(view.tail.keys[0], why)
    async for batches in tails.batches(view.tail.from_offset(begin)):
        records = await access.offload.run(_records_in, batches, begin, kind.codec)
        for record in records:
            apply(record)


async def read_states(
    access: BucketAccess, tails: TailReader, view: BucketView, kind: StateKind
) -> pa.Table:
    """The states of all coordinators of a kind, as one table. Raises the errors of `restore`."""
    topic = view.state.topic_named(kind.topic)
    if topic is None:
        return pa.Table.from_batches([], kind.table.schema)

    async def rows_of(partition: PartitionView) -> list[pa.RecordBatch]:
        machine = kind.machine()
        await restore(access, tails, partition, kind, machine.apply)
        return await access.offload.run(_rows, machine, kind.table)

    at_once = asyncio.Semaphore(STATES_AT_ONCE_MAX)
    found = await read_all(rows_of, view.of_topic(topic.topic_id), at_once)
    return pa.Table.from_batches([rows for each in found for rows in each], kind.table.schema)


def _records_in(batches: VerifiedBatches, offset: int, codec: Codec[RecordT]) -> Sequence[RecordT]:
    try:
        return decode_log(batches.data, offset, codec)
    except TidelogError as error:
        raise CorruptObject(batches.extent.key, str(error)) from error


def _rows(machine: _Machine, table: StateTable[Any]) -> list[pa.RecordBatch]:
    records = machine.capture()
    batches = []
    while step := list(islice(records, ROWS_A_STEP)):
        batches.append(table.rows(step))
    return batches
