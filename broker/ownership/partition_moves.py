"""Moves partitions to other brokers on an operator's request.

Only the owner of a partition gives it away (C3). A broker that is asked for a partition of another
one passes the request on to the owner, once. A request that the owner refuses, or that is lost,
changes nothing or has moved the partition; the operator may repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.broker.ownership.partition_recovery import PartitionRecovery
from tidelog.broker.peers.moves import Move, MoveOutcome
from tidelog.broker.peers.peers import Peers
from tidelog.broker.peers.reassignments import MoveUnderWay
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.coordinator.cluster.membership.draining import is_drained, not_live
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import TidelogError
from tidelog.identifiers import BrokerId, Epoch, Incarnation, TopicPartition
from tidelog.protocol.error_codes import ErrorCode

MOVES_AT_ONCE_MAX: Final = 64
"""The moves of a group: few partitions are on their way at a time."""


class PartitionMoves:
    """One broker's part in moves that operators ask for."""

    def __init__(
        self,
        state: Callable[[], ClusterState],
        me: Incarnation,
        giving: PartitionGiving,
        recovery: PartitionRecovery,
        peers: Peers,
    ) -> None:
        self._state = state
        self._me = me
        self._giving = giving
        self._recovery = recovery
        self._peers = peers

    async def move(self, moves: Sequence[Move], *, passes_on: bool) -> Mapping[Move, MoveOutcome]:
        """Each move's outcome. `passes_on`: ask the owners of other brokers' partitions."""
        state = self._state()
        outcomes: dict[Move, MoveOutcome] = {}
        own: dict[TopicPartition, Move] = {}
        others: list[tuple[Move, Epoch]] = []
        for move in dict.fromkeys(moves):
            place = _place(state, move)
            leader = None if place is None else state.leader(place)
            receiver = state.broker(move.receiver)
            if place is None or leader is None:
                outcomes[move] = MoveOutcome(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"there is no partition {move.topic[:249]}-{move.partition}",
                )
            elif receiver is None:
                outcomes[move] = MoveOutcome(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, not_live(state, move.receiver)
                )
            elif leader.incarnation == receiver.incarnation:
                outcomes[move] = MoveOutcome(ErrorCode.NONE)
            elif receiver.draining:
                outcomes[move] = MoveOutcome(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, is_drained(move.receiver)
                )
            elif leader.incarnation == self._me:
                own[place] = move
            elif passes_on and state.is_live(leader.incarnation.epoch):
                others.append((move, leader.incarnation.epoch))
            else:
                outcomes[move] = MoveOutcome(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"the owner of {move.topic}-{move.partition} has ended or just changed; try"
                    " again",
                )
        given = await all_results(
            [self._give(own), *(self._ask(move, owner) for move, owner in others)]
        )
        for each in given:
            outcomes |= each
        return outcomes

    async def move_in_groups(
        self, moves: Sequence[Move], seconds: float, clock: Clock
    ) -> Mapping[Move, MoveOutcome]:
        """Each move's outcome. Groups follow each other, and none begins after `seconds`."""
        until = clock.monotonic() + seconds
        outcomes: dict[Move, MoveOutcome] = {}
        for begin in range(0, len(moves), MOVES_AT_ONCE_MAX):
            group = moves[begin : begin + MOVES_AT_ONCE_MAX]
            if clock.monotonic() <= until:
                outcomes |= await self.move(group, passes_on=True)
            else:
                late = MoveOutcome(ErrorCode.REQUEST_TIMED_OUT, "it was not begun in time; repeat")
                outcomes |= dict.fromkeys(group, late)
        return outcomes

    async def under_way(self, *, passes_on: bool) -> frozenset[MoveUnderWay]:
        """The moves that this broker takes part in; with `passes_on`, those of all brokers.

        Raises PeerUnreachable if a broker does not answer.
        """
        found = set(self._own_moves())
        if passes_on:
            others = [each for each in self._state().live_brokers() if each.incarnation != self._me]
            found.update(*await all_results([self._ask_under_way(each.epoch) for each in others]))
        return frozenset(found)

    async def _ask_under_way(self, peer: Epoch) -> tuple[MoveUnderWay, ...]:
        return await self._peers.moves_under_way(peer)

    def _own_moves(self) -> Iterator[MoveUnderWay]:
        """The partitions that this broker gives, and those that it opens after a move."""
        state, me = self._state(), self._me.broker_id
        for place, receiver in self._giving.under_way.items():
            info = state.brokers.get(receiver)
            if info is not None and place.topic_id in state.topics:
                yield _under_way(state, place, me, info.broker_id)
        for place in self._recovery.opening:
            tenures = state.tenures(place)
            if len(tenures) > 1 and tenures[-1].previous_end is not None:
                yield _under_way(state, place, tenures[-2].incarnation.broker_id, me)

    async def _give(self, own: Mapping[TopicPartition, Move]) -> Mapping[Move, MoveOutcome]:
        if not own:
            return {}
        live = self._state().live_epochs
        receivers = {
            place: live[move.receiver] for place, move in own.items() if move.receiver in live
        }
        try:
            given = await self._giving.give(receivers)
        except TidelogError as error:
            refused = MoveOutcome(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            return dict.fromkeys(own.values(), refused)
        refused = MoveOutcome(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "the partition is being opened, is damaged, or its receiver has ended; try again",
        )
        return {
            move: MoveOutcome(ErrorCode.NONE) if place in given else refused
            for place, move in own.items()
        }

    async def _ask(self, move: Move, owner: Epoch) -> Mapping[Move, MoveOutcome]:
        try:
            return {move: await self._peers.move(owner, move)}
        except PeerUnreachable as error:
            return {move: MoveOutcome(ErrorCode.REQUEST_TIMED_OUT, str(error))}


def _place(state: ClusterState, move: Move) -> TopicPartition | None:
    topic = state.topic_named(move.topic)
    if topic is None or not 0 <= move.partition < topic.partition_count:
        return None
    return TopicPartition(topic.topic_id, move.partition)


def _under_way(
    state: ClusterState, place: TopicPartition, giver: BrokerId, receiver: BrokerId
) -> MoveUnderWay:
    return MoveUnderWay(state.topics[place.topic_id].name, place.partition, giver, receiver)
