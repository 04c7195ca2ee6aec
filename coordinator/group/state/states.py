"""The states of a group in the classic protocol, and their legal successions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class GroupState(Enum):
    """The values are Kafka's names."""

    EMPTY = "Empty"
    """No members; perhaps committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members join; the group waits for all of them."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A generation has begun; its leader has yet to submit the assignment."""
    STABLE = "Stable"
    """Every member can get its assignment."""
    DEAD = "Dead"
    """Removed; requests on it fail."""


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
    """A programmer's error: an illegal transition of a group's state."""

    def __init__(self, group_id: str, state: GroupState, target: GroupState) -> None:
        super().__init__(f"group {group_id} is {state.value} and cannot become {target.value}")
