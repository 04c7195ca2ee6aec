"""A rule on moves: while two other brokers take partitions, none moves to a draining broker.

One of the two is not the giver, so the giver had another receiver.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.cluster import Environment
from tidelog.broker.broker import Broker
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    DrainChanged,
    PartitionMoved,
    Record,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch

_TAKERS_MIN = 2


class DrainWatch:
    """Follows the entries of the metadata log from a state on."""

    def __init__(self, state: ClusterState) -> None:
        self._is_draining = {info.epoch: info.draining for info in state.live_brokers()}

    def follow(self, sequence: int, records: Sequence[Record]) -> Epoch | None:
        """The draining broker that the entry gives a partition against the rule."""
        for record in records:
            match record:
                case BrokerRegistered():
                    self._is_draining[Epoch(sequence)] = False
                case BrokerFenced(epoch):
                    self._is_draining.pop(epoch, None)
                case DrainChanged(epoch, draining):
                    self._is_draining[epoch] = draining
                case PartitionMoved(owner=owner):
                    takers = sum(not each for each in self._is_draining.values())
                    if self._is_draining.get(owner, False) and takers >= _TAKERS_MIN:
                        return owner
        return None


async def watch_drains(broker: Broker, environment: Environment) -> None:
    """Note a violation for each forbidden move in an entry that the broker reads."""
    await broker.ready.wait()
    if broker.running is None:
        return
    metadata = broker.running.membership.metadata
    watch = DrainWatch(metadata.state)

    def follow(sequence: int, records: Sequence[Record]) -> None:
        given = watch.follow(sequence, records)
        if given is not None:
            environment.cluster.violations.append(
                f"entry {sequence} gives a partition to draining incarnation {given}"
            )

    metadata.subscribe(follow)
