"""The states of a transaction, and their legal successions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class TransactionState(IntEnum):
    """The values are those that Kafka stores; `label` is Kafka's name."""

    EMPTY = 0
    """The transactional id has a producer, which has begun no transaction."""
    ONGOING = 1
    """Partitions are enlisted."""
    PREPARE_COMMIT = 2
    """Decided: commit. The partitions' markers are being written."""
    PREPARE_ABORT = 3
    """Decided: abort. The partitions' markers are being written."""
    COMPLETE_COMMIT = 4
    """Every partition has its marker."""
    COMPLETE_ABORT = 5
    """Every partition has its marker."""
    DEAD = 6
    """Expired: a tombstone in the log."""
    PREPARE_EPOCH_FENCE = 7
    """A producer is being fenced. Never stored: the fence and the abort are one record."""

    @property
    def label(self) -> str:
        """The name in Kafka's answers, such as PrepareCommit."""
        return _LABELS[self]

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are missing."""
        return self in _PREPARED

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction has ended everywhere."""
        return self in _COMPLETE

    @property
    def is_commit(self) -> bool:
        """Whether the outcome is commit."""
        return self in _COMMITS


_PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_COMMITS = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_IDLE = frozenset({TransactionState.EMPTY}) | _COMPLETE
_LABELS = {state: state.name.title().replace("_", "") for state in TransactionState}

PREVIOUS_STATES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        TransactionState.EMPTY: _IDLE,
        TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
        TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
        TransactionState.PREPARE_ABORT: frozenset(
            {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}
        ),
        TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
        TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
        TransactionState.DEAD: _IDLE,
        TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
    }
)
"""The states that each state may follow."""

PREVIOUS_STATES_OF_EMPTY_ABORT: Final = _IDLE
"""The additional states that PrepareAbort may follow if each transaction has an epoch of its own.

A producer aborts even if it does not know whether it began a transaction (KIP-890).
"""

STATES_BY_LABEL: Final[Mapping[str, TransactionState]] = MappingProxyType(
    {label: state for state, label in _LABELS.items()}
)
"""The states by the names that Kafka's tools use."""


def may_follow(
    before: TransactionState, after: TransactionState, *, has_own_epochs: bool = False
) -> bool:
    """Whether a state may follow another; `has_own_epochs`: under Transactions V2."""
    if before in PREVIOUS_STATES[after]:
        return True
    is_empty_abort = has_own_epochs and after is TransactionState.PREPARE_ABORT
    return is_empty_abort and before in PREVIOUS_STATES_OF_EMPTY_ABORT
