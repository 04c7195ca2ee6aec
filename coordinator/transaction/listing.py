"""DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from tidelog.coordinator.transaction.commands import (
    DescribeTransactionReply,
    ListTransactionsReply,
    TransactionListing,
)
from tidelog.coordinator.transaction.transaction import NOT_BEGUN, Transaction
from tidelog.protocol.error_codes import ErrorCode


def describe(transactional_id: str, transaction: Transaction | None) -> DescribeTransactionReply:
    """The newest transaction of a transactional id."""
    if not transactional_id:
        return DescribeTransactionReply(ErrorCode.INVALID_REQUEST)
    if transaction is None:
        return DescribeTransactionReply(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return DescribeTransactionReply(ErrorCode.NONE, transaction)


def chosen(listed: ListTransactionsReply) -> list[TransactionListing]:
    """The transactional ids that pass all filters. May run in a worker thread."""
    asked, now_ms = listed.asked, listed.now_ms
    return [
        TransactionListing(transactional_id, each.producer_id, each.state)
        for transactional_id, each in listed.transactions.items()
        if (not asked.states or each.state in asked.states)
        and (not asked.producer_ids or each.producer_id in asked.producer_ids)
        and (asked.duration_ms < 0 or _is_longer_than(each, asked.duration_ms, now_ms))
    ]


def _is_longer_than(transaction: Transaction, duration_ms: int, now_ms: int) -> bool:
    return transaction.begun_ms != NOT_BEGUN and now_ms - transaction.begun_ms > duration_ms
