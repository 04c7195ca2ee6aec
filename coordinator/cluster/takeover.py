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
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.coordinator.cluster.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records import IncarnationRetired, Succession
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.identifiers import Epoch, Incarnation, Slot, TopicId, TopicPartition
from tidelog.storage.object_store import ObjectStore, StoreNotApplied
from tidelog.storage.sequence import AppendUndecided, SequenceGone
from tidelog.wal.checkpoint import newest_checkpoint
from tidelog.wal.fencing import seal
from tidelog.wal.object_format import wal_prefix

SEAL_ATTEMPTS_MAX = 5

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
    if dead.epoch in log.state.retired:
        return
    info = log.state.brokers.get(dead.epoch)
    if info is None or not info.fenced:
        raise ValueError(f"incarnation {dead} is not fenced and cannot be taken over")
    end = await _seal(store, clock, entropy, dead, in_flight_max)

    def build(state: ClusterState) -> tuple[IncarnationRetired, ...]:
        if dead.epoch in state.retired:
            return ()
        owners = assign(state, dead.epoch)
        return (IncarnationRetired(dead.epoch, end, successions(owners)),)

    await log.append(me.epoch, build)
    logger.info("incarnation retired", extra={"incarnation": str(dead), "end_slot": end})


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


async def _seal(
    store: ObjectStore, clock: Clock, entropy: Entropy, dead: Incarnation, in_flight_max: int
) -> Slot:
    """Seal the WAL, scanning from the newest checkpoint: slots below it may have been deleted."""
    for attempt in range(1, SEAL_ATTEMPTS_MAX + 1):
        start = await newest_checkpoint(store, dead) or Slot(0)
        try:
            return await seal(store, clock, entropy, dead, start, in_flight_max)
        except (AppendUndecided, SequenceGone) as error:
            logger.warning(
                "the WAL is sealed once more, from its newest checkpoint",
                extra={"incarnation": str(dead), "attempt": attempt, "why": str(error)},
            )
    raise StoreNotApplied(
        wal_prefix(dead), f"its end was not found in {SEAL_ATTEMPTS_MAX} attempts; try again"
    )
