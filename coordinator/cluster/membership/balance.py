"""Plans which partitions a broker gives away, so that all live brokers have a fair share. Pure.

Only owners give, so two brokers never act on the same partition. All brokers compute with the same
state, but not at the same moment: several may give to one receiver. What each gives is its own
surplus, and the surpluses add up to what the receivers lack. So no receiver gets more than its fair
share by more than the partitions of one plan of each giver.

A draining broker's share is nothing: it gives all that it has to the others, and gets nothing.

A small difference stays: moves cost clients a look-up. Partitions of an internal topic, which carry
the coordinators, are balanced by their own count; all other partitions together.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence

from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, TopicPartition


def plan_moves(
    state: ClusterState,
    giver: Epoch,
    tolerance_percent: int,
    moves_max: int,
    stuck: Container[TopicPartition] = (),
) -> dict[TopicPartition, Epoch]:
    """The partitions that `giver` gives away now, at most `moves_max`, with their receivers.

    `stuck`: partitions that it cannot give.

    Empty if the giver has at most its fair share and `tolerance_percent` more. A giver beyond the
    tolerance gives all that is above the fair share, so that the next plan is empty.
    """
    moves: dict[TopicPartition, Epoch] = {}
    for group in _groups(state):
        room = moves_max - len(moves)
        balance = _Balance(state, group)
        moves |= balance.given_by(giver, tolerance_percent, room, lambda place: place not in stuck)
    return moves


def plan_election(
    state: ClusterState, asked: Collection[TopicPartition]
) -> dict[TopicPartition, Epoch]:
    """The partitions among `asked` that should have another owner, with that owner.

    They are the surplus of brokers that have more than their fair share, all brokers together. So
    an election of all partitions leaves every broker with its share.
    """
    moves: dict[TopicPartition, Epoch] = {}
    for group in _groups(state):
        balance = _Balance(state, group)
        for giver in sorted(state.live_epochs.values()):
            moves |= balance.given_by(giver, 0, len(asked), lambda place: place in asked)
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


class _Balance:
    """The loads and fair shares of one group's owners."""

    def __init__(self, state: ClusterState, group: _Owned) -> None:
        self._group = group
        self._takers = [info.epoch for info in state.takers()]
        self._loads = Counter(dict.fromkeys(state.live_epochs.values(), 0))
        self._loads.update(owner for _, owner in group if owner in self._loads)
        fair, rest = divmod(sum(self._loads.values()), len(self._takers) or 1)
        self._fair = fair
        # Where the number does not divide, those that have most keep one more.
        ranked = sorted(self._takers, key=lambda epoch: (-self._loads[epoch], epoch))
        self._shares = {epoch: fair + (rank < rest) for rank, epoch in enumerate(ranked)}

    def given_by(
        self,
        giver: Epoch,
        tolerance_percent: int,
        moves_max: int,
        may_go: Callable[[TopicPartition], bool],
    ) -> dict[TopicPartition, Epoch]:
        """The giver's moves. They count for the givers after it."""
        loads, shares = self._loads, self._shares
        if giver not in loads or not self._takers or self._takers == [giver]:
            return {}
        surplus = loads[giver] - shares.get(giver, 0)
        tolerated = self._fair * tolerance_percent // 100 if giver in shares else 0
        if surplus <= tolerated:
            return {}
        own = [place for place, owner in self._group if owner == giver and may_go(place)]
        heap = [(loads[epoch], epoch) for epoch in self._takers if loads[epoch] < shares[epoch]]
        heapq.heapify(heap)
        moves = {}
        for place in own[: min(surplus, moves_max)]:
            load, epoch = heap[0]
            moves[place] = epoch
            heapq.heapreplace(heap, (load + 1, epoch))
        loads.update(moves.values())
        loads[giver] -= len(moves)
        return moves
