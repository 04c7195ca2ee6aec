"""Takeover: a fenced incarnation's partitions get a new owner (rule C4).

Any process may repeat each step. The steps, and the state if the process dies after each:

1. The incarnation is fenced in the metadata log. Its partitions have no working owner, and its WAL
   may still grow. The next starting or watching broker finds it by `fenced_not_retired`.
2. Its WAL is sealed. Its acknowledged records lie below the seal; it can acknowledge no more. A
   process that seals again finds the same end.
3. `IncarnationRetired` names the end and gives each of its partitions a new tenure, in one entry.
   Of several attempts one is first; the others see that it is done. From here on the new owners
   recover the partitions from the bucket, and no process seals this WAL again.

If a successor dies before it has opened a partition, its own takeover adds a further tenure, and
the log lies where it lay (rule C5). No step loses data or has to be undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.leases import read_durable_end
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import IncarnationRetired, SlotRange, Succession
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.identifiers import Epoch, Incarnation, Slot, TopicId, TopicPartition
from tidelog.storage.object_store import ObjectStore, StoreNotApplied
from tidelog.storage.sequence import AppendUndecided, SequenceGone
from tidelog.wal.format.object_format import wal_key, wal_prefix
from tidelog.wal.recover.wal_end import WalEnd, seal

SEAL_ATTEMPTS_MAX = 5
KEYS_SHOWN = 10
"""The lost objects that the broker's log names."""

Assign: TypeAlias = Callable[[ClusterState, Epoch], Mapping[TopicPartition, Epoch]]
"""The new owner's epoch for every partition of the fenced incarnation with the given epoch.
Pure."""

logger = logging.getLogger(__name__)


def all_to(owner: Epoch) -> Assign:
    """Assigns every partition to one incarnation."""
    return lambda state, dead: dict.fromkeys(state.owned_by(dead), owner)


def successions(owners: Mapping[TopicPartition, Epoch]) -> tuple[Succession, ...]:
    """An assignment in the metadata log's form: partitions by topic and new owner."""
    groups: dict[tuple[TopicId, Epoch], list[int]] = {}
    for partition, owner in owners.items():
        groups.setdefault((partition.topic_id, owner), []).append(partition.partition)
    return tuple(
        [
            Succession(topic_id, owner, tuple(sorted(partitions)))
            for (topic_id, owner), partitions in groups.items()
        ]
    )


async def take_over(
    log: MetadataLog,
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    me: Incarnation,
    dead: Incarnation,
    in_flight_max: int,
    assign: Assign | None = None,
) -> None:
    """Retire a fenced incarnation; its partitions go to `me`, or as `assign` says.

    `in_flight_max`: how many slots brokers put at a time. It determines the barrier of seals; a
    later barrier stops a writer that puts more. Returns once the metadata log has the incarnation
    retired, by this or another process.

    Raises ValueError if it is not fenced; StoreError, after which the caller may retry; and the
    errors of MetadataLog.append.
    """
    assign = assign or all_to(me.epoch)
    if log.state.is_retired(dead):
        return
    info = log.state.brokers.get(dead.epoch)
    if info is None or not info.fenced:
        raise ValueError(f"incarnation {dead} is not fenced and cannot be taken over")
    end = await _seal(store, clock, entropy, info, in_flight_max)
    damaged = ranges_of(end.damaged)

    records: tuple[IncarnationRetired, ...] = ()

    def build(state: ClusterState) -> tuple[IncarnationRetired, ...]:
        # The last call is the one whose records were appended.
        nonlocal records
        records = ()
        if not state.is_retired(dead):
            owners = assign(state, dead.epoch)
            records = (IncarnationRetired(dead.epoch, end.slot, successions(owners), damaged),)
        return records

    await log.append(me.epoch, build)
    if not records:
        # Another process has retired it, and has logged that.
        return
    about = {"incarnation": str(dead), "end_slot": end.slot}
    logger.info("incarnation retired", extra=about)
    if damaged:
        logger.error(
            "slots of a WAL were durable and are lost; partitions with records in them are not"
            " served. Restore the objects from a copy of the bucket, or see what is lost with"
            " tidelog bucket repair",
            extra={**about, "keys": [wal_key(dead, slot) for slot in end.damaged[:KEYS_SHOWN]]},
        )


async def take_over_fenced(
    log: MetadataLog,
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    me: Incarnation,
    in_flight_max: int,
    assign: Assign | None = None,
) -> tuple[Incarnation, ...]:
    """Retire and return every incarnation that waits for it, whichever broker fenced it."""
    waiting = (await log.refresh()).fenced_not_retired()
    for info in waiting:
        await take_over(log, store, clock, entropy, me, info.incarnation, in_flight_max, assign)
    return tuple([info.incarnation for info in waiting])


def ranges_of(slots: Iterable[Slot]) -> tuple[SlotRange, ...]:
    """Ascending slots as ranges of consecutive slots."""
    ranges: list[SlotRange] = []
    for slot in slots:
        if ranges and ranges[-1].last == slot - 1:
            ranges[-1] = SlotRange(ranges[-1].first, slot)
        else:
            ranges.append(SlotRange(slot, slot))
    return tuple(ranges)


async def _seal(
    store: ObjectStore, clock: Clock, entropy: Entropy, info: BrokerInfo, in_flight_max: int
) -> WalEnd:
    """Seal the WAL, again from the newest checkpoint where a slot's fate could not be told."""
    dead = info.incarnation
    told = await read_durable_end(store, info)
    for attempt in range(1, SEAL_ATTEMPTS_MAX + 1):
        try:
            return await seal(store, clock, entropy, dead, in_flight_max, told)
        except (AppendUndecided, SequenceGone) as error:
            logger.warning(
                "the WAL is sealed once more, from its newest checkpoint",
                extra={"incarnation": str(dead), "attempt": attempt, "why": str(error)},
            )
    raise StoreNotApplied(
        wal_prefix(dead), f"its end was not found in {SEAL_ATTEMPTS_MAX} attempts; try again"
    )
