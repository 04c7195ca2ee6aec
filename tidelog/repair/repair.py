"""`tidelog bucket repair`: surveys the losses of a bucket, and lets it continue without them.

A survey changes nothing. Accepting losses, step by step, and the state if the process dies after
each; no broker may live meanwhile:

1. Accept the metadata log's lost end (`log_end`). Nothing else is examined before the log is whole.
2. Register this process as the broker that was there before, which fences that broker. Take over
   its partitions, as a starting broker does. The next start of either finds that.
3. Store the replacements: an object that fills the holes, then an image of each partition. No other
   object refers to them yet; a collector deletes them in time.
4. Record `LossAccepted`, which gives each partition its next tenure, with its image as the base.
   Each recorded one counts; the other partitions are as before. Then delete the unreadable states
   of its coordinator. While one is left, the next run finds it and accepts the loss again.
5. This process fences itself. The next broker takes over, as it does without this step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.bucket.fsck.context import Progress
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import BucketAccess, BucketView
from tidelog.coordinator.cluster.log.leases import Lease, list_leases
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.registration import register
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import BrokerFenced, LossAccepted
from tidelog.errors import Refused
from tidelog.identifiers import FIRST_SLOT, BrokerId, Epoch, Incarnation, TopicPartition
from tidelog.repair import log_end
from tidelog.repair.log_end import LogEnd, accept_log_end, find_log_end
from tidelog.repair.partitions import PartitionDamage, damaged_partitions
from tidelog.repair.tables import TableDamage, accept_table, damaged_tables, losses_of, sound_ends
from tidelog.storage.object_store import IfAbsent
from tidelog.wal.format.image_codec import encode_images
from tidelog.wal.recover.filler import Filler

NOBODY = Incarnation(BrokerId(0), Epoch(0))
"""The incarnation in whose name a survey fills holes: its fillings are discarded."""
ADDRESS = ("repair.invalid", 1)
"""The advertised address, at which no client finds this process."""


class BrokersLive(Refused):
    """A broker renews its lease. Nothing was changed."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(
            f"broker {lease.broker_id} lives: {lease.process}. Nothing was changed. Stop it first"
        )


class UnknownLoss(Refused):
    """A named loss does not exist. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class DamageSurvey:
    """The losses of a bucket. If the metadata log's end is lost, nothing else was examined."""

    log_end: LogEnd | None
    tables: Sequence[TableDamage] = ()
    partitions: Sequence[PartitionDamage] = ()

    @property
    def is_whole(self) -> bool:
        return self.log_end is None and not self.tables and not self.partitions

    def facts(self) -> dict[str, Any]:
        """The survey for JSON."""
        end = self.log_end
        return {
            "whole": self.is_whole,
            "log_end": None
            if end is None
            else {
                "lost": None if end.is_whole else [end.lost.first, end.lost.last],
                "why": end.why,
                "deleted": list(end.superfluous),
            },
            "tables": [
                {
                    "topic": damage.topic.name,
                    "objects": damage.faults,
                    "version": damage.state.version,
                    "cut": damage.cut is not None,
                    "lost": {
                        f"{damage.topic.name}-{number}": [
                            [each.first, each.last] for each in damage.lost_offsets_of(number)
                        ]
                        for number in damage.partitions
                    },
                }
                for damage in self.tables
            ],
            "partitions": [
                {
                    "partition": damage.name,
                    "objects": dict(damage.faults),
                    "lost": [[each.first, each.last] for each in damage.lost],
                    "aborted": [each._asdict() for each in damage.aborted],
                    "end": damage.image.next_offset,
                }
                for damage in self.partitions
            ],
        }

    def lines(self) -> list[str]:
        """The survey for people."""
        if self.is_whole:
            return ["nothing is lost"]
        lines: list[str] = []
        if self.log_end is not None:
            lines += _log_end_lines(self.log_end)
        for table in self.tables:
            lines += _table_lines(table)
        for damage in self.partitions:
            lines += _partition_lines(damage)
        return [*lines, "nothing was changed: --accept-loss accepts the losses that it names"]

    def names(self) -> list[str]:
        """The names under which losses can be accepted."""
        found = [] if self.log_end is None else [log_end.NAME]
        found += [damage.topic.name for damage in self.tables]
        return [*found, *(damage.name for damage in self.partitions)]


def _untold(key: str) -> None:
    """The progress, for callers that show none."""


async def survey(
    access: BucketAccess, filler: Filler | None = None, progress: Progress = _untold
) -> DamageSurvey:
    """Examine everything that a broker would serve.

    `progress` is called with the key of each segment, and of each object of a tail. Raises
    UnsupportedFormat, StoreError, and CorruptObject if nothing can be repaired.
    """
    end = await find_log_end(access)
    if not end.is_whole or end.superfluous:
        return DamageSurvey(end)
    bucket, view = await _view(access)
    tables = await damaged_tables(access, view, progress)
    if filler is None:
        filler = Filler(NOBODY, 0, access.clock.time_ms(), access.entropy.uuid().bytes)
    ends = await sound_ends(access, view.state, tables)
    partitions = await damaged_partitions(bucket, view, ends, filler, progress)
    return DamageSurvey(None, tables, partitions)


async def _view(access: BucketAccess) -> tuple[Bucket, BucketView]:
    """The bucket, with a view of all partitions."""
    bucket = Bucket(access)
    state = await bucket.refresh()
    return bucket, await bucket.view_partitions(
        TopicPartition(topic.topic_id, number)
        for topic in state.topics.values()
        for number in range(topic.partition_count)
    )


@dataclass(frozen=True, slots=True)
class Processes:
    """The identity of this process, and its means to tell whether others run."""

    mine: ProcessIdentity
    is_running: Callable[[ProcessIdentity], bool | None]


async def accept(
    access: BucketAccess,
    wanted: Collection[str],
    processes: Processes,
    in_flight_max: int,
    progress: Progress = _untold,
) -> None:
    """Accept the named losses: the log's end, topics, partitions, or objects by their keys.

    It surveys the bucket twice; `progress` is as for `survey`. Raises UnknownLoss, BrokersLive, and
    the errors of `survey`. After a StoreError call again.
    """
    found = await survey(access, progress=progress)
    _check_names(found, wanted)
    if found.is_whole:
        return
    if found.log_end is not None:
        await _require_silence(access, processes)
        await accept_log_end(access, found.log_end)
        return
    log = await MetadataLog.open(
        access.store,
        access.clock,
        access.entropy,
        settings=access.settings,
        offload=access.offload,
    )
    try:
        me = await _take_over_everything(access, log, processes, in_flight_max)
        await _accept_losses(access, log, me, wanted, progress)
        await _fence_self(log, me)
    finally:
        await log.close()


async def _take_over_everything(
    access: BucketAccess, log: MetadataLog, processes: Processes, in_flight_max: int
) -> Incarnation:
    """Register as the broker that was there before. Other broker ids are fenced in the same way."""
    first, *others = sorted((await log.refresh()).live_epochs) or [_last_broker_id(log)]

    async def become(broker_id: BrokerId) -> Incarnation:
        registered = await register(
            log,
            access.store,
            access.clock,
            broker_id,
            ADDRESS,
            processes.mine,
            processes.is_running,
        )
        return registered.incarnation

    for broker_id in others:
        await _fence_self(log, await become(broker_id))
    me = await become(first)
    await take_over_fenced(log, access.store, access.clock, access.entropy, me, in_flight_max)
    return me


def _last_broker_id(log: MetadataLog) -> BrokerId:
    """The id of the last registered incarnation; all incarnations are fenced."""
    state = log.state
    known = [info.incarnation for info in state.brokers.values()]
    known += [wal.incarnation for wal in state.retired.values()]
    return max(known, key=lambda each: each.epoch, default=NOBODY).broker_id


async def _fence_self(log: MetadataLog, me: Incarnation) -> None:
    await log.append(me.epoch, lambda _: (BrokerFenced(me.epoch, FIRST_SLOT),))


async def _accept_losses(
    access: BucketAccess,
    log: MetadataLog,
    me: Incarnation,
    wanted: Collection[str],
    progress: Progress,
) -> None:
    store = access.store
    # Every WAL has ended now. Tables come first, since tails begin at their ends.
    _, view = await _view(access)
    for table in await damaged_tables(access, view, progress):
        accepted = table.accepted(wanted)
        if accepted is not None:
            for record in losses_of(accepted):
                await _record(log, me, record)
            await accept_table(access, accepted)
    filler = Filler(me, 0, access.clock.time_ms(), access.entropy.uuid().bytes)
    found = await survey(access, filler, progress)
    cut = {damage.topic.topic_id for damage in found.tables if damage.cut is not None}
    chosen = [
        damage
        for damage in found.partitions
        # A tail begins at its table's end: the table's loss has to be accepted first.
        if damage.partition.topic_id not in cut and _is_named(damage, wanted)
    ]
    if not filler.is_empty:
        await store.put(filler.key, await access.offload.run(filler.data), IfAbsent())
    for damage in chosen:
        key = f"handover/{access.entropy.uuid()}"
        data = await access.offload.run(encode_images, [damage.image])
        await store.put(key, data, IfAbsent())
        topic_id, number = damage.partition
        keys = tuple(sorted(damage.faults))
        await _record(log, me, LossAccepted(topic_id, number, key, damage.lost, keys))
        # Not before: without them nothing would tell the next repair of the loss.
        for superfluous in damage.superfluous:
            await store.delete(superfluous)


async def _record(log: MetadataLog, me: Incarnation, record: LossAccepted) -> None:
    await log.append(me.epoch, lambda _: (record,))


def _is_named(damage: PartitionDamage, wanted: Collection[str]) -> bool:
    """Whether a partition's loss is among the named ones."""
    topic = damage.name.rpartition("-")[0]
    return bool({damage.name, topic, *damage.faults} & set(wanted))


def _check_names(found: DamageSurvey, wanted: Collection[str]) -> None:
    """Raise UnknownLoss, with the existing losses, for a name that matches none."""
    keys: set[str] = set()
    topics: set[str] = set()
    partitions: set[str] = set()
    for damage in found.partitions:
        keys |= damage.faults.keys()
        topics.add(damage.name.rpartition("-")[0])
    for table in found.tables:
        keys |= table.faults.keys()
        if table.cut is None:
            # A table whose log is cut can only be accepted as a whole.
            partitions |= {f"{table.topic.name}-{number}" for number in table.partitions}
    unknown = sorted(set(wanted) - {*found.names(), *keys, *topics, *partitions})
    if unknown:
        lost = ", ".join(found.names()) or "nothing"
        raise UnknownLoss(
            f"{', '.join(unknown)}: nothing of that is lost. Nothing was changed. The losses are:"
            f" {lost}"
        )


async def _require_silence(access: BucketAccess, processes: Processes) -> None:
    """Raise BrokersLive if a broker may be alive.

    Before the metadata log can be read, only leases tell of brokers. A broker is alive if its lease
    changes within a session timeout, or if its process is seen to run.
    """
    before = {key: lease async for key, lease in list_leases(access.store)}
    running = [processes.is_running(lease.process) for lease in before.values()]
    for lease, runs in zip(before.values(), running, strict=True):
        if runs:
            raise BrokersLive(lease)
    if None in running:
        await access.clock.sleep(access.settings.session_timeout_ms / 1000)
        async for key, lease in list_leases(access.store):
            if before.get(key) != lease:
                raise BrokersLive(lease)


def _log_end_lines(end: LogEnd) -> list[str]:
    lines = [f"{log_end.NAME}: {end.why or 'unreadable snapshots are in the way'}"]
    if end.is_whole:
        lines.append("  nothing is lost")
    else:
        lines.append(
            f"  lost: entries {end.lost.first} to {end.lost.last} of the metadata log: topics,"
            " settings and brokers that they recorded, with all writes of those brokers"
        )
    lines += [f"  deleted with it: {key}" for key in end.superfluous]
    return [*lines, "  other losses show once this one is accepted"]


def _table_lines(damage: TableDamage) -> list[str]:
    name = damage.topic.name
    lines = [f"{name}: its table"]
    lines += [f"  {key}: {why}" for key, why in sorted(damage.faults.items())]
    if damage.cut is not None:
        back = sum(map(len, damage.cut.readopted.values()))
        lines.append(
            f"  given up: the entries of its log after version {damage.state.version}; {back}"
            " segments after it are whole and come back"
        )
    for number in damage.partitions:
        for each in damage.lost_of(number):
            lines.append(
                f"  lost: {each.row_count} records of {name}-{number} in offsets"
                f" {each.name.base_offset} to {each.name.last_offset}"
            )
        lines += [
            f"  lost: all records of {name}-{number} in offsets {gap.first} to {gap.last}: none of"
            " their segments can be read, if they had any"
            for gap in damage.gaps_of(number)
        ]
    return lines


def _partition_lines(damage: PartitionDamage) -> list[str]:
    lines = [f"{damage.name}:"]
    lines += [f"  {key}: {why}" for key, why in sorted(damage.faults.items())]
    lines += [f"  lost: offsets {each.first} to {each.last}" for each in damage.lost]
    if not damage.is_loss:
        lines.append("  nothing is lost: the damaged objects can be replaced")
    lines += [
        f"  aborted: the transaction of producer {each.producer_id} that begins at offset"
        f" {each.first_offset}, whose end is lost"
        for each in damage.aborted
    ]
    return [*lines, f"  it continues at offset {damage.image.next_offset}"]
