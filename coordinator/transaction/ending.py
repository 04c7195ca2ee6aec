"""EndTxn: decides a transaction's outcome, once.

Under Transactions V2 each transaction has an epoch of its own, which the outcome's record raises.
So a request with the previous epoch is a repetition. One with the current epoch ends the next
transaction, even if that has no partitions yet.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.decision import Token
from tidelog.coordinator.transaction.commands import (
    EndTransaction,
    FreshIdNeeded,
    Identity,
    IdentityReply,
)
from tidelog.coordinator.transaction.decision import TransactionTurn
from tidelog.coordinator.transaction.enlistment import identity_error
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    EPOCH_MAX,
    FIRST_EPOCH,
    NO_ID,
    OWN_EPOCHS_FROM,
    Transaction,
)
from tidelog.protocol.error_codes import ErrorCode


class _Verdict(NamedTuple):
    """Whether the request decides the outcome; if not, its error."""

    decides: bool
    error: ErrorCode = ErrorCode.NONE


_DECIDE = _Verdict(True)
_DONE = _Verdict(False)
_FENCED = _Verdict(False, ErrorCode.PRODUCER_FENCED)
_UNDER_WAY = _Verdict(False, ErrorCode.CONCURRENT_TRANSACTIONS)
_ILLEGAL = _Verdict(False, ErrorCode.INVALID_TXN_STATE)


def end_transaction(
    asked: EndTransaction,
    before: Transaction | None,
    coordinator_epoch: int,
    token: Token,
    turn: TransactionTurn,
) -> None:
    """Decide the outcome, or reply with the decided one, or with an error."""
    if before is None or not asked.transactional_id:
        error = identity_error(asked.transactional_id, before, asked.identity)
        turn.reply(token, IdentityReply(error))
        return
    verdict = _verdict(asked, before)
    if not verdict.decides:
        identity = before.identity_when_complete
        is_done = verdict.error is ErrorCode.NONE
        turn.reply(token, IdentityReply(verdict.error, *(identity if is_done else ())))
        return
    has_own_epochs = asked.client_version >= OWN_EPOCHS_FROM
    next_id = NO_ID
    if has_own_epochs and before.is_exhausted:
        if asked.fresh_id is None:
            turn.reply_when_appended(token, FreshIdNeeded())
            return
        next_id = asked.fresh_id
    prepared = before.prepared(
        commit=asked.commit,
        client_version=asked.client_version,
        next_producer_id=next_id,
        now_ms=turn.now.time_ms,
    )
    turn.decide_outcome(asked.transactional_id, prepared, coordinator_epoch)
    turn.reply(token, IdentityReply(ErrorCode.NONE, *prepared.identity_when_complete))


def _verdict(asked: EndTransaction, before: Transaction) -> _Verdict:
    has_own_epochs = asked.client_version >= OWN_EPOCHS_FROM
    if has_own_epochs and _is_repetition(asked.identity, before):
        return _verdict_on_repetition(asked, before)
    error = identity_error(asked.transactional_id, before, asked.identity)
    if error is not ErrorCode.NONE:
        return _Verdict(False, error)
    if before.state is TransactionState.ONGOING:
        return _DECIDE
    if not has_own_epochs:
        return _verdict_by_outcome(asked, before)
    if before.state.is_prepared:
        # The producer has begun the next transaction before this one ended everywhere.
        return _UNDER_WAY
    return _ILLEGAL if asked.commit else _DECIDE


def _is_repetition(identity: Identity, before: Transaction) -> bool:
    if not before.has_own_epochs:
        return False
    if identity.producer_id == before.producer_id:
        return FIRST_EPOCH <= identity.epoch == before.producer_epoch - 1
    # The outcome was decided with the last epoch of the previous id.
    return (
        identity == (before.previous_producer_id, EPOCH_MAX - 1)
        and before.producer_epoch == FIRST_EPOCH
        and before.state.is_complete
    )


def _verdict_on_repetition(asked: EndTransaction, before: Transaction) -> _Verdict:
    if before.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return _FENCED
    if before.state is TransactionState.COMPLETE_ABORT and before.producer_epoch == EPOCH_MAX:
        # The coordinator aborted, and no producer may use the epoch of the answer.
        return _FENCED
    return _verdict_by_outcome(asked, before)


def _verdict_by_outcome(asked: EndTransaction, before: Transaction) -> _Verdict:
    """The answer to a producer whose transaction is decided."""
    if before.state is TransactionState.EMPTY or asked.commit != before.state.is_commit:
        return _ILLEGAL
    return _UNDER_WAY if before.state.is_prepared else _DONE
