"""Take-over: how a fenced incarnation's partitions get a new owner (rule C4).

The steps, each of which anybody may repeat, and what holds if the process dies after it:

1. The incarnation is fenced in the metadata log. Nobody owns its partitions in practice, and its
   WAL may still grow. Whoever starts next, or watches, finds it by `fenced_not_retired`.
2. Its WAL is sealed. What it acknowledged lies below the seal; it can acknowledge nothing more.
   Whoever seals again finds the same end.
3. `IncarnationRetired` tells the end and gives each of its partitions a new tenure, all in one
   entry. Of several that try, one is first; the others see that it is done. From here on the new
   owners recover the partitions from the bucket, and nobody seals this WAL again.

If a successor dies before it has opened a partition, its own take-over adds a further tenure, and
the log lies where it lay (rule C5). Nothing is lost on purpose, and no step has to be undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.leases import told_durable
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import IncarnationRetired, SlotRange, Succession
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.identifiers import Epoch, Incarnation, Slot, TopicId, TopicPartition
from tidelog.storage.object_store import ObjectStore, StoreNotApplied
from tidelog.storage.sequence import AppendUndecided, SequenceGone
from tidelog.wal.format.object_format import wal_key, wal_prefix
from tidelog.wal.recover.fencing import WalEnd, seal

SEAL_ATTEMPTS_MAX = 5
KEYS_SHOWN = 10
"""Of lost objects, in the log."""

Assign: TypeAlias = Callable[[ClusterState, Epoch], Mapping[TopicPartition, Epoch]]
"""The new owner's epoch for every partition of a fenced incarnation, given by its epoch. Pure."""

logger = logging.getLogger(__name__)


def all_to(owner: Epoch) -> Assign:
    """Everything goes to one incarnation."""
    return lambda state, dead: dict.fromkeys(state.owned_by(dead), owner)


def successions(owners: Mapping[TopicPartition, Epoch]) -> tuple[Succession, ...]:
    """An assignment as the metadata log writes it: partitions by topic and new owner."""
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

    `in_flight_max`: how many slots brokers put at a time, by which barrier seals are placed; a
    writer that puts more is met by a later barrier. Returns when the metadata log says that it is
    retired, whoever did it. ValueError if it is not
    fenced; StoreError, after which it may be tried again; and what MetadataLog.append raises.
    """
    assign = assign or all_to(me.epoch)
    if log.state.is_retired(dead):
        return
    info = log.state.brokers.get(dead.epoch)
    if info is None or not info.fenced:
        raise ValueError(f"incarnation {dead} is not fenced and cannot be taken over")
    end = await _seal(store, clock, entropy, info, in_flight_max)
    damaged = ranges_of(end.damaged)

    def build(state: ClusterState) -> tuple[IncarnationRetired, ...]:
        if state.is_retired(dead):
            return ()
        owners = assign(state, dead.epoch)
        return (IncarnationRetired(dead.epoch, end.slot, successions(owners), damaged),)

    await log.append(me.epoch, build)
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
    """Retire every incarnation that waits for it, whoever fenced it; which those were."""
    waiting = (await log.refresh()).fenced_not_retired()
    for info in waiting:
        await take_over(log, store, clock, entropy, me, info.incarnation, in_flight_max, assign)
    return tuple([info.incarnation for info in waiting])


def ranges_of(slots: Iterable[Slot]) -> tuple[SlotRange, ...]:
    """Ascending slots as ranges of slots that follow each other."""
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
    told = await told_durable(store, info)
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
