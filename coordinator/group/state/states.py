"""The states of a group in the classic protocol, and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class GroupState(Enum):
    """The values are the names that Kafka gives them in its answers."""

    EMPTY = "Empty"
    """No members; perhaps committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join; all of them are waited for."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun; its leader is to say who consumes what."""
    STABLE = "Stable"
    """Every member can have its assignment."""
    DEAD = "Dead"
    """Removed; whoever still holds it is sent away."""


PREVIOUS_STATES: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.PREPARING_REBALANCE: frozenset(
            {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        ),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
        GroupState.DEAD: frozenset(GroupState),
    }
)
"""The states that each state may follow."""


class InvalidGroupTransition(AssertionError):
    """A programmer's error: a state was to follow one that it may not follow."""

    def __init__(self, group_id: str, state: GroupState, target: GroupState) -> None:
        super().__init__(f"group {group_id} is {state.value} and cannot become {target.value}")
