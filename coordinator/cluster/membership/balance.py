"""Plans which partitions a broker gives away, so that all live brokers have a fair share. Pure.

Only owners give, so two brokers never act on the same partition. All brokers compute with the same
state, but not at the same moment: several may give to one receiver. What each gives is its own
surplus, and the surpluses add up to what the receivers lack. So no receiver gets more than its fair
share by more than the partitions of one plan of each giver.

A small difference stays: moves cost clients a look-up. Partitions of an internal topic, which carry
the coordinators, are balanced by their own count; all other partitions together.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, TopicPartition


def plan_moves(
    state: ClusterState, giver: Epoch, tolerance_percent: int, moves_max: int
) -> dict[TopicPartition, Epoch]:
    """The partitions that `giver` gives away now, at most `moves_max`, with their receivers.

    Empty if the giver has at most its fair share and `tolerance_percent` more. A giver beyond the
    tolerance gives all that is above the fair share, so that the next plan is empty.
    """
    moves: dict[TopicPartition, Epoch] = {}
    for group in _groups(state):
        room = moves_max - len(moves)
        moves |= _plan(state, giver, group, tolerance_percent, room)
    return moves


_Owned = Sequence[tuple[TopicPartition, Epoch]]


def _groups(state: ClusterState) -> list[_Owned]:
    """Partitions that are balanced together, with their owners; those of coordinators first."""
    internal: list[_Owned] = []
    others: list[tuple[TopicPartition, Epoch]] = []
    for topic in state.topics.values():
        owned = [
            (TopicPartition(topic.topic_id, number), tenures[-1].incarnation.epoch)
            for number, tenures in enumerate(topic.partitions)
        ]
        if topic.internal:
            internal.append(owned)
        else:
            others += owned
    return [*internal, others]


def _plan(
    state: ClusterState, giver: Epoch, group: _Owned, tolerance_percent: int, moves_max: int
) -> dict[TopicPartition, Epoch]:
    live = [info.epoch for info in state.live_brokers()]
    loads = Counter(dict.fromkeys(live, 0))
    loads.update(owner for _, owner in group if owner in loads)
    if giver not in loads or len(live) < 2:
        return {}
    fair, rest = divmod(sum(loads.values()), len(live))
    # Where the number does not divide, those that have most keep one more.
    ranked = sorted(live, key=lambda epoch: (-loads[epoch], epoch))
    shares = {epoch: fair + (rank < rest) for rank, epoch in enumerate(ranked)}
    surplus = loads[giver] - shares[giver]
    if surplus <= fair * tolerance_percent // 100:
        return {}
    own = [place for place, owner in group if owner == giver]
    heap = [(load, epoch) for epoch, load in loads.items() if load < shares[epoch]]
    heapq.heapify(heap)
    moves = {}
    for place in own[: min(surplus, moves_max)]:
        load, epoch = heap[0]
        moves[place] = epoch
        heapq.heapreplace(heap, (load + 1, epoch))
    return moves
