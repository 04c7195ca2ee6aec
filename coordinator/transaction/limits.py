"""Limits the memory of the transaction coordinators. Pure.

The limits hold for additions alone: a log may contain more than they allow.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.coordinator.budget import ID_LENGTH_MAX, Budget, Share, limit_met
from tidelog.coordinator.decision import LimitMet
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.transaction import Transaction
from tidelog.protocol.error_codes import ErrorCode

TRANSACTIONAL_IDS_MAX: Final = "transactional.ids.max"
TRANSACTION_PARTITIONS_MAX: Final = "transaction.max.partitions"
TRANSACTIONS_PARTITIONS_MAX: Final = "transactions.max.partitions"


class TransactionBudgets(NamedTuple):
    """The limits that all transaction coordinators of a broker share."""

    ids: Budget
    partitions: Budget
    """Partitions of open transactions."""


def unlimited() -> TransactionBudgets:
    """Budgets of a coordinator on its own, and of readers of its log."""
    return TransactionBudgets(Budget.unlimited(), Budget.unlimited())


class TransactionLimits:
    """Counts one coordinator's ids and partitions, and says whether more may be added."""

    def __init__(
        self, settings: TransactionCoordinatorSettings, budgets: TransactionBudgets
    ) -> None:
        self._settings = settings
        self._ids: Share = budgets.ids.share()
        self._partitions: Share = budgets.partitions.share()

    def changed(self, before: Transaction | None, after: Transaction | None) -> None:
        """Count the change of a transactional id (None: it does not exist)."""
        if before is None or after is None:
            self._ids.hold(self._ids.held + (after is not None) - (before is not None))
        more = _count(after) - _count(before)
        if more:
            self._partitions.hold(self._partitions.held + more)

    def close(self) -> None:
        """Give back everything held."""
        self._ids.hold(0)
        self._partitions.hold(0)

    def new_id(self, transactional_id: str) -> LimitMet | None:
        """Why a new transactional id is refused; None if it is accepted."""
        length, length_max = len(transactional_id), self._settings.id_length_max
        if length > length_max:
            return limit_met(
                ErrorCode.INVALID_REQUEST,
                ID_LENGTH_MAX,
                f"a transactional id has {length} characters; at most {length_max} are accepted",
            )
        return self._ids.refusal(
            1,
            ErrorCode.POLICY_VIOLATION,
            TRANSACTIONAL_IDS_MAX,
            "there are {held} transactional ids; at most {limit} are kept",
        )

    def enlist(self, before: Transaction, after: Transaction) -> LimitMet | None:
        """Why partitions may not join a transaction; None if they may."""
        count, count_max = len(after.partitions), self._settings.partitions_max
        if count > count_max:
            return limit_met(
                ErrorCode.POLICY_VIOLATION,
                TRANSACTION_PARTITIONS_MAX,
                f"a transaction would have {count} partitions; at most {count_max} are accepted",
            )
        return self._partitions.refusal(
            count - len(before.partitions),
            ErrorCode.POLICY_VIOLATION,
            TRANSACTIONS_PARTITIONS_MAX,
            "open transactions have {held} partitions; {more} more would be above {limit}",
        )


def _count(transaction: Transaction | None) -> int:
    return 0 if transaction is None else len(transaction.partitions)
