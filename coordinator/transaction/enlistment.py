"""AddPartitionsToTxn, AddOffsetsToTxn and the verification of partitions, on one transaction."""

from __future__ import annotations

from tidelog.coordinator.decision import Token
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    AddReply,
    Identity,
    Release,
    Reply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.decision import TransactionTurn
from tidelog.coordinator.transaction.limits import TransactionLimits
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EPOCH_MAX, Transaction
from tidelog.protocol.error_codes import ErrorCode


def identity_error(
    transactional_id: str, transaction: Transaction | None, identity: Identity
) -> ErrorCode:
    """Why a producer with this identity may not act on the transaction; NONE if it may."""
    if not transactional_id:
        return ErrorCode.INVALID_REQUEST
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if is_next_identity(transaction, identity):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if identity.producer_id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # The highest epoch only fences; no producer ever gets it.
    if identity.epoch != transaction.producer_epoch or identity.epoch == EPOCH_MAX:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def is_next_identity(transaction: Transaction, identity: Identity) -> bool:
    """Whether the identity is the new producer id that takes effect once the transaction has ended.

    The producer learned it when the outcome was decided.
    """
    following = transaction.identity_when_complete
    return transaction.producer_id != following[0] and identity == following


def add_partitions(
    asked: AddPartitions,
    before: Transaction | None,
    limits: TransactionLimits,
    token: Token,
    turn: TransactionTurn,
) -> None:
    """Enlist the partitions, or reply with an error."""
    error = identity_error(asked.transactional_id, before, asked.identity)
    if error is not ErrorCode.NONE or before is None:
        turn.reply(token, AddReply(error))
        return
    if before.state.is_prepared:
        turn.reply(token, AddReply(ErrorCode.CONCURRENT_TRANSACTIONS))
        return
    enlisted = before.partitions if before.state is TransactionState.ONGOING else frozenset()
    after = before
    if not asked.partitions <= enlisted:
        after = before.enlisting(asked.partitions, asked.client_version, turn.now.time_ms)
        limit = limits.enlist(before, after)
        if limit is not None:
            turn.reply(token, AddReply(turn.refuse(limit)))
            return
        turn.store(asked.transactional_id, after)
    _release(asked.release, token, AddReply(ErrorCode.NONE, after.ordinal), turn)


def verify_partitions(
    asked: VerifyPartitions, transaction: Transaction | None, token: Token, turn: TransactionTurn
) -> None:
    """Reply which of the partitions are enlisted."""
    error = identity_error(asked.transactional_id, transaction, asked.identity)
    if error is not ErrorCode.NONE or transaction is None:
        turn.reply(token, VerifyReply(error))
    elif transaction.state.is_prepared:
        turn.reply(token, VerifyReply(ErrorCode.CONCURRENT_TRANSACTIONS))
    else:
        # Partitions are enlisted only in the state Ongoing.
        missing = asked.partitions - transaction.partitions
        reply = VerifyReply(ErrorCode.NONE, transaction.ordinal, missing)
        _release(Release.DURABLE if missing else asked.release, token, reply, turn)


def _release(release: Release, token: Token, reply: Reply, turn: TransactionTurn) -> None:
    if release is Release.APPENDED:
        turn.reply_when_appended(token, reply)
    else:
        turn.reply(token, reply)
