"""Chooses the incarnations that get new partitions. Pure."""

from __future__ import annotations

import heapq
from collections import Counter

from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import Epoch


class NoLiveBroker(Refused):
    """No live broker can take partitions; nothing was created."""


class Placement:
    """Gives each partition to the live incarnation that has fewest."""

    def __init__(self, state: ClusterState) -> None:
        """Raises NoLiveBroker if no broker is live."""
        live = state.live_brokers()
        if not live:
            raise NoLiveBroker("no broker is alive that could take partitions")
        loads: Counter[Epoch] = Counter()
        if len(live) > 1:
            loads.update(
                tenures[-1].incarnation.epoch
                for topic in state.topics.values()
                for tenures in topic.partitions
            )
        self._heap = [(loads[info.epoch], info.broker_id, info.epoch) for info in live]
        heapq.heapify(self._heap)

    def assign(self, count: int) -> tuple[Epoch, ...]:
        """The owners of `count` more partitions. Later calls count them."""
        owners = []
        for _ in range(count):
            load, broker_id, epoch = self._heap[0]
            owners.append(epoch)
            heapq.heapreplace(self._heap, (load + 1, broker_id, epoch))
        return tuple(owners)


def assign_owners(state: ClusterState, count: int) -> tuple[Epoch, ...]:
    return Placement(state).assign(count)
