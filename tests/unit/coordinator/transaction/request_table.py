"""Kafka's table of a transaction coordinator: the answer of each request in each state, and the
record that is written. `DIFFERENCES` gives the reasons where Tidelog differs on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tests.unit.coordinator.transaction.transaction_world import (
    START_MS,
    TIMEOUT_MS,
    TV1,
    TV2,
    TXN,
    P,
    Q,
    identity,
)
from tidelog.coordinator.transaction.commands import (
    ANONYMOUS,
    AddPartitions,
    Command,
    EndTransaction,
    Identity,
    InitProducer,
    Reply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.log_records import STORED_STATES
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode

PID, OTHER_PID, FRESH_PID = 40, 41, ProducerId(42)
E, L, NO = 7, 6, -1
PRODUCER = identity(PID, E)
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = (
    STORED_STATES.values()
)
PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)
IDLE = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
INVALID_STATE = ErrorCode.INVALID_TXN_STATE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE


class Cell(NamedTuple):
    """The answer, the states that are written, and the epochs stored afterwards."""

    error: ErrorCode = ErrorCode.NONE
    writes: tuple[TransactionState, ...] = ()
    epoch: int = E
    last_epoch: int = L


Row = Mapping[TransactionState, Cell]


def row(*cells: tuple[TransactionState | tuple[TransactionState, ...], Cell]) -> Row:
    return {
        state: cell
        for states, cell in cells
        for state in (states if isinstance(states, tuple) else (states,))
    }


def init(who: Identity = ANONYMOUS) -> Command:
    return InitProducer(
        transactional_id=TXN, timeout_ms=TIMEOUT_MS, identity=who, fresh_id=FRESH_PID
    )


def add(partition: EnlistedPartition, who: Identity = PRODUCER) -> Command:
    return AddPartitions(
        transactional_id=TXN,
        identity=who,
        partitions=frozenset({partition}),
        client_version=TV1,
    )


def verify(partition: EnlistedPartition, who: Identity = PRODUCER) -> Command:
    return VerifyPartitions(transactional_id=TXN, identity=who, partitions=frozenset({partition}))


def end(commit: bool, version: int, epoch: int = E, producer_id: int = PID) -> Command:
    who = identity(producer_id, epoch)
    return EndTransaction(
        transactional_id=TXN, identity=who, commit=commit, client_version=version, fresh_id=None
    )


BUMPED = Cell(writes=(EMPTY,), epoch=E + 1, last_epoch=NO)
FENCE = Cell(CONCURRENT, (PREPARE_ABORT,), E + 1, NO)
ENLISTED = Cell(writes=(ONGOING,))
EMPTY_ABORT = Cell(writes=(PREPARE_ABORT, COMPLETE_ABORT), epoch=E + 1, last_epoch=E)

REQUESTS: Mapping[str, tuple[int, Command, Row]] = {
    "InitProducerId": (
        TV1,
        init(),
        row((IDLE, BUMPED), (ONGOING, FENCE), (PREPARED, Cell(CONCURRENT))),
    ),
    "InitProducerId, current epoch": (
        TV1,
        init(identity(PID, E)),
        row(
            (IDLE, Cell(writes=(EMPTY,), epoch=E + 1, last_epoch=E)),
            # The repeated request finds the epoch that it names.
            (ONGOING, FENCE._replace(last_epoch=E)),
            (PREPARED, Cell(CONCURRENT)),
        ),
    ),
    "InitProducerId, last epoch": (
        TV1,
        init(identity(PID, L)),
        row((IDLE, Cell(writes=(EMPTY,))), (ONGOING, FENCE), (PREPARED, Cell(CONCURRENT))),
    ),
    "InitProducerId, older epoch": (
        TV1,
        init(identity(PID, L - 1)),
        row((IDLE, Cell(FENCED)), (ONGOING, FENCE), (PREPARED, Cell(CONCURRENT))),
    ),
    "InitProducerId, other id": (
        TV1,
        init(identity(OTHER_PID, E)),
        row((IDLE, Cell(FENCED)), (ONGOING, Cell(FENCED)), (PREPARED, Cell(CONCURRENT))),
    ),
    "AddPartitions, another": (
        TV1,
        add(Q),
        row((IDLE, ENLISTED), (ONGOING, ENLISTED), (PREPARED, Cell(CONCURRENT))),
    ),
    "AddPartitions, enlisted": (
        TV1,
        add(P),
        row((IDLE, ENLISTED), (ONGOING, Cell()), (PREPARED, Cell(CONCURRENT))),
    ),
    "AddPartitions, old epoch": (
        TV1,
        add(P, identity(PID, L)),
        row((tuple(STORED_STATES.values()), Cell(FENCED))),
    ),
    "AddPartitions, other id": (
        TV1,
        add(P, identity(OTHER_PID, E)),
        row((tuple(STORED_STATES.values()), Cell(MAPPING))),
    ),
    "verify, another": (
        TV1,
        verify(Q),
        row((IDLE, Cell(ABORTABLE)), (ONGOING, Cell(ABORTABLE)), (PREPARED, Cell(CONCURRENT))),
    ),
    "verify, enlisted": (
        TV1,
        verify(P),
        row((IDLE, Cell(ABORTABLE)), (ONGOING, Cell()), (PREPARED, Cell(CONCURRENT))),
    ),
    "verify, old epoch": (
        TV1,
        verify(P, identity(PID, L)),
        row((tuple(STORED_STATES.values()), Cell(FENCED))),
    ),
    "EndTxn TV1 commit": (
        TV1,
        end(True, TV1),
        row(
            (EMPTY, Cell(INVALID_STATE)),
            (ONGOING, Cell(writes=(PREPARE_COMMIT,))),
            (PREPARE_COMMIT, Cell(CONCURRENT)),
            (PREPARE_ABORT, Cell(INVALID_STATE)),
            (COMPLETE_COMMIT, Cell()),
            (COMPLETE_ABORT, Cell(INVALID_STATE)),
        ),
    ),
    "EndTxn TV1 abort": (
        TV1,
        end(False, TV1),
        row(
            (EMPTY, Cell(INVALID_STATE)),
            (ONGOING, Cell(writes=(PREPARE_ABORT,))),
            (PREPARE_COMMIT, Cell(INVALID_STATE)),
            (PREPARE_ABORT, Cell(CONCURRENT)),
            (COMPLETE_COMMIT, Cell(INVALID_STATE)),
            (COMPLETE_ABORT, Cell()),
        ),
    ),
    "EndTxn TV1, old epoch": (
        TV1,
        end(True, TV1, L),
        row((tuple(STORED_STATES.values()), Cell(FENCED))),
    ),
    "EndTxn TV2 commit": (
        TV2,
        end(True, TV2),
        row(
            (IDLE, Cell(INVALID_STATE)),
            (ONGOING, Cell(writes=(PREPARE_COMMIT,), epoch=E + 1, last_epoch=E)),
            (PREPARED, Cell(CONCURRENT)),
        ),
    ),
    "EndTxn TV2 commit, repeated": (
        TV2,
        end(True, TV2, E - 1),
        row(
            ((EMPTY, ONGOING), Cell(FENCED)),
            (PREPARE_COMMIT, Cell(CONCURRENT)),
            (PREPARE_ABORT, Cell(INVALID_STATE)),
            (COMPLETE_COMMIT, Cell()),
            (COMPLETE_ABORT, Cell(INVALID_STATE)),
        ),
    ),
    "EndTxn TV2 abort": (
        TV2,
        end(False, TV2),
        row(
            (IDLE, EMPTY_ABORT),
            (ONGOING, Cell(writes=(PREPARE_ABORT,), epoch=E + 1, last_epoch=E)),
            (PREPARED, Cell(CONCURRENT)),
        ),
    ),
    "EndTxn TV2 abort, repeated": (
        TV2,
        end(False, TV2, E - 1),
        row(
            ((EMPTY, ONGOING), Cell(FENCED)),
            (PREPARE_COMMIT, Cell(INVALID_STATE)),
            (PREPARE_ABORT, Cell(CONCURRENT)),
            (COMPLETE_COMMIT, Cell(INVALID_STATE)),
            (COMPLETE_ABORT, Cell()),
        ),
    ),
    "EndTxn TV2, older epoch": (
        TV2,
        end(True, TV2, E - 2),
        row((tuple(STORED_STATES.values()), Cell(FENCED))),
    ),
    "EndTxn TV2, other id": (
        TV2,
        end(True, TV2, producer_id=OTHER_PID),
        row((tuple(STORED_STATES.values()), Cell(MAPPING))),
    ),
    "EndTxn TV2, the transaction was TV1": (
        TV1,
        end(True, TV2, E - 1),
        row((tuple(STORED_STATES.values()), Cell(FENCED))),
    ),
}


class Difference(NamedTuple):
    """A cell in which Kafka gives another answer, and the reason for Tidelog's."""

    error: ErrorCode
    last_epoch: int
    why: str


_NEXT_BEGUN = Difference(
    FENCED,
    L,
    "the epoch is the one that the producer was just told: it has begun its next transaction, and"
    " is not fenced but early; it is told to ask again",
)
DIFFERENCES: Mapping[tuple[str, TransactionState], Difference] = {
    **{
        (name, state): _NEXT_BEGUN
        for name in ("EndTxn TV2 commit", "EndTxn TV2 abort")
        for state in PREPARED
    },
    ("InitProducerId, current epoch", ONGOING): Difference(
        CONCURRENT,
        NO,
        "a lone producer that goes on from its own epoch would be fenced by its own repetition",
    ),
}
"""By request and state. All other cells are as in Kafka."""


def stored(state: TransactionState, version: int) -> Transaction:
    """A transaction in this state."""
    is_under_way = state is ONGOING or state.is_prepared
    return Transaction(
        producer_id=ProducerId(PID),
        producer_epoch=ProducerEpoch(E),
        last_epoch=ProducerEpoch(L),
        previous_producer_id=ProducerId(PID),
        state=state,
        timeout_ms=TIMEOUT_MS,
        updated_ms=START_MS,
        begun_ms=-1 if state is EMPTY else START_MS,
        partitions=frozenset({P}) if is_under_way else frozenset(),
        ordinal=3,
        client_version=version,
    )


def error_of(reply: Reply) -> ErrorCode:
    error = getattr(reply, "error", None)
    assert isinstance(error, ErrorCode), reply
    if isinstance(reply, VerifyReply) and reply.missing:
        return ABORTABLE
    return error
