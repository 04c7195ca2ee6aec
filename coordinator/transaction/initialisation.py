"""InitProducerId with a transactional id: chooses the producer's identity."""

from __future__ import annotations

from tidelog.coordinator.decision import Token
from tidelog.coordinator.transaction.commands import (
    FreshIdNeeded,
    IdentityReply,
    InitProducer,
)
from tidelog.coordinator.transaction.decision import TransactionTurn
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    EPOCH_MAX,
    NO_EPOCH,
    NO_ID,
    Transaction,
    created,
    is_exhausted,
)
from tidelog.identifiers import ProducerEpoch
from tidelog.protocol.error_codes import ErrorCode


def init_producer(
    asked: InitProducer,
    before: Transaction | None,
    settings: TransactionCoordinatorSettings,
    coordinator_epoch: int,
    token: Token,
    turn: TransactionTurn,
) -> None:
    """Give the producer its identity and fence the previous one, or reply with an error."""
    error = _error(asked, before, settings)
    if error is not ErrorCode.NONE:
        turn.reply(token, IdentityReply(error))
    elif before is None:
        _create(asked, token, turn)
    elif before.state is TransactionState.ONGOING:
        _fence(asked, before, coordinator_epoch, token, turn)
    elif before.is_exhausted and _may_renew_identity(asked, before):
        _rotate(asked, before, token, turn)
    else:
        _bump(asked, before, token, turn)


def _error(
    asked: InitProducer, before: Transaction | None, settings: TransactionCoordinatorSettings
) -> ErrorCode:
    producer_id, epoch = asked.identity
    if not asked.transactional_id or (producer_id == NO_ID) != (epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not 0 < asked.timeout_ms <= settings.timeout_ms_max:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    if before is None:
        return ErrorCode.NONE
    if before.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    # The previous id is right if the answer with the new one was lost.
    is_repeat = producer_id == before.previous_producer_id and is_exhausted(epoch)
    if producer_id not in (NO_ID, before.producer_id) and not is_repeat:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _create(asked: InitProducer, token: Token, turn: TransactionTurn) -> None:
    # An expired producer with an identity starts anew too.
    if asked.fresh_id is None:
        turn.reply_when_appended(token, FreshIdNeeded())
        return
    after = created(asked.fresh_id, asked.timeout_ms, turn.now.time_ms)
    _take_over(asked, after, token, turn)


def _fence(
    asked: InitProducer,
    before: Transaction,
    coordinator_epoch: int,
    token: Token,
    turn: TransactionTurn,
) -> None:
    """Abort the open transaction under an epoch that no producer gets; the producer asks again.

    If the transaction's own producer asks, its epoch identifies the repetition. (Kafka under TV1
    forgets it, and so fences a single producer that continues from its own epoch.)
    """
    is_own = asked.identity == (before.producer_id, before.producer_epoch)
    last_epoch = before.producer_epoch if is_own else NO_EPOCH
    prepared = before.fenced(last_epoch, turn.now.time_ms)
    turn.decide_outcome(asked.transactional_id, prepared, coordinator_epoch)
    turn.reply(token, IdentityReply(ErrorCode.CONCURRENT_TRANSACTIONS))


def _may_renew_identity(asked: InitProducer, before: Transaction) -> bool:
    """Whether the producer may follow a used-up epoch: a successor, or the producer that has it.

    Any other producer was fenced, or repeats the request that brought that epoch.
    """
    expected = asked.identity.epoch
    if expected in (NO_EPOCH, before.producer_epoch):
        return True
    # Its own fence took the epoch that no producer gets.
    return before.producer_epoch == EPOCH_MAX and expected == before.last_epoch


def _rotate(asked: InitProducer, before: Transaction, token: Token, turn: TransactionTurn) -> None:
    if asked.fresh_id is None:
        turn.reply_when_appended(token, FreshIdNeeded())
        return
    last_epoch = asked.identity.epoch
    after = before.rotated(asked.fresh_id, last_epoch, asked.timeout_ms, turn.now.time_ms)
    _take_over(asked, after, token, turn)


def _bump(asked: InitProducer, before: Transaction, token: Token, turn: TransactionTurn) -> None:
    expected, timeout_ms, now_ms = asked.identity.epoch, asked.timeout_ms, turn.now.time_ms
    epoch = ProducerEpoch(before.producer_epoch + 1)
    if expected in (NO_EPOCH, before.producer_epoch):
        after = before.initialised(epoch, expected, timeout_ms, now_ms)
    elif expected == before.last_epoch:
        # A repetition: the answer was lost. No other producer came between, or there were no last
        # epoch.
        after = before.initialised_again(timeout_ms, now_ms)
    else:
        turn.reply(token, IdentityReply(ErrorCode.PRODUCER_FENCED))
        return
    _take_over(asked, after, token, turn)


def _take_over(
    asked: InitProducer, after: Transaction, token: Token, turn: TransactionTurn
) -> None:
    turn.store(asked.transactional_id, after)
    turn.reply(token, IdentityReply(ErrorCode.NONE, after.producer_id, after.producer_epoch))
