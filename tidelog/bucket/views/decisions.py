"""Decides which transactions belong to an atomic snapshot over topics (rule G4). Pure.

The reader reads table versions first, then the coordinators' states, each as of its moment t0, then
the tails. A transaction belongs to the snapshot if its coordinator had decided commit at t0. All of
its rows were durable before that decision, so all are in the tables or in the tails. A row in a
table was decided before the reader read the table, so it belongs to the snapshot in any case. For a
row in a tail the transaction's producer id and ordinal decide:

| Ordinal | Decided by |
|---|---|
| below the producer id's current one | the tail's markers (`BY_MARKER`) |
| the current one | the coordinator's state, or the tail's markers (below) |
| above the current one | not in: the transaction began after t0 |
| of a producer id that no coordinator knows | the place of its marker (below) |

An earlier transaction was decided, and its markers were durable, before the next one began.

The current transaction: the coordinator's state decides if it is Ongoing, or a decision whose
markers are still being written. In all other states all markers were durable, so the tail's markers
decide. They also decide if a producer aborted without a transaction: that leaves the ordinal as it
was (KIP-890).

An unknown producer id began after t0, or the coordinator forgot it before t0. The coordinator
forgets an id that expires, or whose epochs are used up, once its last transaction is complete. The
log may still name the id, and counts then. Otherwise the snapshot of the coordinator's state is
younger, and the markers were durable before that snapshot was written. The reader learns the WALs'
durable ends after it chose the snapshots and before t0. If a marker lies below these ends, the
transaction is decided. Otherwise it began after t0.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

from tidelog.coordinator.transaction.log_records import (
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
)
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import NO_ID, Transaction
from tidelog.identifiers import TransactionName


class TransactionOutcome(Enum):
    """A transaction's outcome as a coordinator knew it at t0."""

    COMMITTED = "committed"
    NOT_COMMITTED = "aborted, undecided, or not begun"
    BY_MARKER = "complete: the partitions' markers tell"
    UNKNOWN = "the producer id is not known"


class TailTransaction(NamedTuple):
    """A transaction with data in one partition's tail."""

    name: TransactionName
    is_open: bool
    """No marker has ended it in this tail."""
    has_early_marker: bool
    """A marker has ended it in a slot that was durable before t0."""


_Known: TypeAlias = Transaction | None
"""A producer id's current transaction; None: all transactions of the id are complete."""


class Decisions:
    """One coordinator's knowledge at t0. Apply its snapshot's records, then those of its log."""

    def __init__(self) -> None:
        self._by_producer: dict[int, _Known] = {}
        self._by_id: dict[str, Transaction] = {}

    def apply(self, record: TransactionRecord) -> None:
        """Apply a record."""
        before = self._by_id.get(record.transactional_id)
        match record:
            case TransactionStored(transactional_id, transaction):
                self._by_id[transactional_id] = transaction
                former_id = transaction.previous_producer_id
                if former_id not in (transaction.producer_id, NO_ID):
                    # An id is given up only when all of its transactions are complete.
                    self._by_producer[former_id] = None
                self._by_producer[transaction.producer_id] = transaction
            case TransactionRemoved(transactional_id):
                self._by_id.pop(transactional_id, None)
                if before is not None:
                    self._by_producer[before.producer_id] = None

    def outcome(self, name: TransactionName) -> TransactionOutcome:
        """The coordinator's knowledge of a transaction."""
        if name.producer_id not in self._by_producer:
            return TransactionOutcome.UNKNOWN
        current = self._by_producer[name.producer_id]
        if current is None or name.ordinal < current.ordinal:
            return TransactionOutcome.BY_MARKER
        if name.ordinal > current.ordinal:
            return TransactionOutcome.NOT_COMMITTED
        return _outcome_of_current(current)


def _outcome_of_current(transaction: Transaction) -> TransactionOutcome:
    match transaction.state:
        case TransactionState.ONGOING:
            return TransactionOutcome.NOT_COMMITTED
        case TransactionState.PREPARE_COMMIT:
            return TransactionOutcome.COMMITTED
        case TransactionState.PREPARE_ABORT if transaction.partitions:
            return TransactionOutcome.NOT_COMMITTED
        case _:
            return TransactionOutcome.BY_MARKER


def excluded_transactions(
    coordinators: Iterable[Decisions], tails: Iterable[TailTransaction]
) -> frozenset[TransactionName]:
    """The transactions in the tails that the snapshot leaves out.

    Transactions that a marker in the tail aborts are not among them. Each transaction is judged
    once for all partitions, so it is in everywhere or nowhere.
    """
    known = list(coordinators)
    found: dict[TransactionName, tuple[bool, bool]] = {}
    for name, is_open, has_early_marker in tails:
        was_open, had_early = found.get(name, (False, False))
        found[name] = was_open or is_open, had_early or has_early_marker
    excluded = set()
    for name, (is_open, has_early_marker) in found.items():
        outcomes = {each.outcome(name) for each in known} - {TransactionOutcome.UNKNOWN}
        outcome = outcomes.pop() if outcomes else TransactionOutcome.UNKNOWN
        if outcome is TransactionOutcome.UNKNOWN:
            outcome = (
                TransactionOutcome.BY_MARKER
                if has_early_marker
                else TransactionOutcome.NOT_COMMITTED
            )
        # A decided transaction without a marker here hangs: no object tells its outcome.
        hangs = outcome is TransactionOutcome.BY_MARKER and is_open
        if outcome is TransactionOutcome.NOT_COMMITTED or hangs:
            excluded.add(name)
    return frozenset(excluded)
