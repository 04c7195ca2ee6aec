"""Assigns partitions to live incarnations: new ones, a dead incarnation's, and surplus ones. Pure.

Each partition goes to the incarnation with the least load. The partitions of an internal topic are
spread by their own count first, so that no broker gets all coordinators. The same arguments always
give the same assignment: a broker that repeats a take-over repeats its proposal.

Only owners give their surplus away, so two brokers never act on the same partition. All brokers
compute with the same state, but not at the same moment: several may give to one receiver. Each
gives its own surplus, and the surpluses add up to what the receivers lack. So no receiver gets more
than its fair share by more than the partitions of one plan of each giver. A draining broker's share
is nothing. A small difference stays: moves cost clients a look-up.

A partition may be wanted in a zone, because clients there use its coordinator (`zone_use`). It
goes to a broker of that zone if the counts of both stay within the tolerance (`plan_zone_moves`).
Within the tolerance no broker gives by count. So each such move puts one more partition where it is
wanted, no other move takes it back, and moves end. Several brokers may give to one receiver at a
time: each move is checked again on the state that it is appended to (`keeps_balance`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType

from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import Epoch, TopicPartition

NO_SIZES: Mapping[TopicPartition, int] = MappingProxyType({})


class NoLiveBroker(Refused):
    """No live broker can take partitions; nothing was created."""


class Placement:
    """Gives each partition to the live incarnation with the least load, and counts it there.

    A partition's load is half its share of all partitions and half its share of all known bytes.
    The sums are integers, so that every broker computes the same.
    """

    def __init__(
        self,
        state: ClusterState,
        sizes: Mapping[TopicPartition, int] = NO_SIZES,
        avoided: frozenset[Epoch] = frozenset(),
        near: frozenset[Epoch] = frozenset(),
    ) -> None:
        """`sizes`: the known bytes of partitions.

        `avoided`: incarnations that get partitions only if all live ones are avoided. Draining ones
        get partitions only if all others are avoided or draining. `near`: these come first among
        incarnations with equal loads. Raises NoLiveBroker if no broker is live.
        """
        live = state.live_brokers()
        if not live:
            raise NoLiveBroker("no broker is alive that could take partitions")
        present = [info for info in live if info.epoch not in avoided] or live
        able = [info for info in present if not info.draining] or present
        self._sizes = sizes
        self._per_partition = max(1, sum(sizes.values()))
        self._per_byte = sum(len(topic.partitions) for topic in state.topics.values())
        self._ranks = {info.epoch: (info.epoch not in near, info.broker_id) for info in able}
        self._loads: Counter[Epoch] = Counter()
        if len(able) > 1:
            for partition, owner in _owners(state):
                self._loads[owner] += self._load_of(partition)
        self._heap = [(self._loads[epoch], rank, epoch) for epoch, rank in self._ranks.items()]
        heapq.heapify(self._heap)

    def assign(self, count: int) -> tuple[Epoch, ...]:
        """The owners of `count` more partitions without bytes."""
        return self.place(repeat(None, count))

    def place(self, partitions: Iterable[TopicPartition | None]) -> tuple[Epoch, ...]:
        """The owners of further partitions, in their order; None is a new partition."""
        owners = []
        for partition in partitions:
            load, rank, epoch = self._heap[0]
            while load != self._loads[epoch]:
                # `place_evenly` has given it partitions since.
                heapq.heapreplace(self._heap, (self._loads[epoch], rank, epoch))
                load, rank, epoch = self._heap[0]
            self._loads[epoch] += self._load_of(partition)
            heapq.heapreplace(self._heap, (self._loads[epoch], rank, epoch))
            owners.append(epoch)
        return tuple(owners)

    def place_evenly(
        self, partitions: Iterable[TopicPartition | None], has: Mapping[Epoch, int]
    ) -> tuple[Epoch, ...]:
        """The owners of further partitions of one topic, spread by their count before their load.

        `has`: how many partitions of the topic each incarnation has.
        """
        counts = Counter(has)
        owners = []
        for partition in partitions:
            epoch = min(
                self._ranks, key=lambda each: (counts[each], self._loads[each], self._ranks[each])
            )
            counts[epoch] += 1
            self._loads[epoch] += self._load_of(partition)
            owners.append(epoch)
        return tuple(owners)

    def _load_of(self, partition: TopicPartition | None) -> int:
        size = 0 if partition is None else self._sizes.get(partition, 0)
        return self._per_partition + self._per_byte * size


def assign_evenly(state: ClusterState, count: int) -> tuple[Epoch, ...]:
    """The owners of a new internal topic's partitions. Raises NoLiveBroker."""
    return Placement(state).place_evenly(repeat(None, count), {})


def spread(
    state: ClusterState,
    dead: Epoch,
    sizes: Mapping[TopicPartition, int] = NO_SIZES,
    avoided: frozenset[Epoch] = frozenset(),
) -> dict[TopicPartition, Epoch]:
    """The new owners of a fenced incarnation's partitions: all live brokers get a share.

    Brokers of the dead one's rack come first among equals. `avoided`: incarnations that look dead
    and are not fenced yet. Raises NoLiveBroker.
    """
    rack = state.brokers[dead].rack
    in_rack = [each.epoch for each in state.live_brokers() if each.rack == rack is not None]
    placement = Placement(state, sizes, avoided, frozenset(in_rack))
    owners: dict[TopicPartition, Epoch] = {}
    others: list[TopicPartition] = []
    for topic in state.topics.values():
        owned = [
            TopicPartition(topic.topic_id, number)
            for number, tenures in enumerate(topic.partitions)
            if tenures[-1].incarnation.epoch == dead
        ]
        if topic.internal:
            counts = Counter(tenures[-1].incarnation.epoch for tenures in topic.partitions)
            owners |= zip(owned, placement.place_evenly(owned, counts), strict=True)
        else:
            others += owned
    # The largest first: the small ones then level the loads.
    others.sort(key=lambda partition: -sizes.get(partition, 0))
    owners |= zip(others, placement.place(others), strict=True)
    return owners


def _owners(state: ClusterState) -> Iterator[tuple[TopicPartition, Epoch]]:
    return (
        (TopicPartition(topic.topic_id, number), tenures[-1].incarnation.epoch)
        for topic in state.topics.values()
        for number, tenures in enumerate(topic.partitions)
    )


def plan_moves(
    state: ClusterState,
    giver: Epoch,
    tolerance_percent: int,
    moves_max: int,
    unmovable: Container[TopicPartition] = (),
    wanted: Mapping[TopicPartition, str] = MappingProxyType({}),
) -> dict[TopicPartition, Epoch]:
    """The partitions that `giver` gives away now, at most `moves_max`, with their receivers.

    `unmovable`: partitions that it cannot give. `wanted`: the zones in which partitions are wanted;
    the giver keeps those of its own zone rather than others.

    Empty if the giver has at most its fair share and `tolerance_percent` more. A giver beyond the
    tolerance gives all that is above the fair share, so that the next plan is empty.
    """
    moves: dict[TopicPartition, Epoch] = {}
    rack = _rack(state, giver)
    for group in _groups(state):
        # The sort is stable: without zones the order stays.
        group = sorted(group, key=lambda owned: wanted.get(owned[0]) == rack is not None)
        room = moves_max - len(moves)
        balance = _Balance(state, group)
        moves |= balance.given_by(
            giver, tolerance_percent, room, lambda place: place not in unmovable
        )
    return moves


def plan_zone_moves(
    state: ClusterState,
    giver: Epoch,
    wanted: Mapping[TopicPartition, str],
    tolerance_percent: int,
    moves_max: int,
    unmovable: Container[TopicPartition] = (),
) -> dict[TopicPartition, Epoch]:
    """Of the giver's partitions, some that are wanted in other zones, with receivers there.

    Empty unless all counts stay within the tolerance. At most `moves_max`.
    """
    moves: dict[TopicPartition, Epoch] = {}
    rack = _rack(state, giver)
    if rack is None:
        return moves
    for group in _groups(state):
        balance = _Balance(state, group)
        for place, owner in group:
            zone = wanted.get(place, rack)
            if len(moves) == moves_max:
                return moves
            if owner != giver or zone == rack or place in unmovable:
                continue
            receiver = balance.receiver_in(zone, giver, tolerance_percent)
            if receiver is not None:
                balance.count(giver, receiver)
                moves[place] = receiver
    return moves


def keeps_balance(
    state: ClusterState, place: TopicPartition, receiver: Epoch, tolerance_percent: int
) -> bool:
    """Whether the counts stay within the tolerance if the partition goes to the receiver now."""
    tenure = state.leader(place)
    group = next((each for each in _groups(state) if any(place == one for one, _ in each)), ())
    if tenure is None:
        return False
    balance = _Balance(state, group)
    return balance.may_move(tenure.incarnation.epoch, receiver, tolerance_percent)


def _rack(state: ClusterState, epoch: Epoch) -> str | None:
    info = state.brokers.get(epoch)
    return None if info is None else info.rack


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
        self._able = state.takers()
        self._takers = [info.epoch for info in self._able]
        self._loads = Counter(dict.fromkeys(state.live_epochs.values(), 0))
        self._loads.update(owner for _, owner in group if owner in self._loads)
        fair, rest = divmod(sum(self._loads.values()), len(self._takers) or 1)
        self._fair = fair
        self._has_rest = bool(rest)
        # Where the number does not divide, those that have most keep one more.
        ranked = sorted(self._takers, key=lambda epoch: (-self._loads[epoch], epoch))
        self._shares = {epoch: fair + (rank < rest) for rank, epoch in enumerate(ranked)}

    def receiver_in(self, zone: str, giver: Epoch, tolerance_percent: int) -> Epoch | None:
        """The broker of a zone with the least load to which the giver may give one partition."""
        able = [
            info.epoch
            for info in self._able
            if info.rack == zone and self.may_move(giver, info.epoch, tolerance_percent)
        ]
        return min(able, key=lambda epoch: (self._loads[epoch], epoch), default=None)

    def may_move(self, giver: Epoch, receiver: Epoch, tolerance_percent: int) -> bool:
        """Whether one move keeps the counts of giver and receiver within the tolerance."""
        if giver not in self._shares or receiver not in self._shares:
            return False
        tolerated = self._fair * tolerance_percent // 100
        highest = self._fair + max(self._has_rest, tolerated)
        lowest = self._fair - tolerated
        return self._loads[receiver] < highest and self._loads[giver] > lowest

    def count(self, giver: Epoch, receiver: Epoch) -> None:
        """Count a move for those that are planned after it."""
        self._loads[giver] -= 1
        self._loads[receiver] += 1

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
