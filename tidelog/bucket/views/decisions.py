"""Which transactions belong to an atomic snapshot over topics (rule G4). Pure.

The snapshot is read in this order: table versions; the coordinators' states, each as of its moment
t0; then the tails. A transaction belongs to it if its coordinator had decided commit at t0. All of
its rows were durable before that decision, so all are in the tables or in the tails. A row that a
table holds was decided before the table was read, so it belongs to the snapshot anyway. Of a row in
a tail this module tells, by (producer id, ordinal), what the coordinators knew:

- An ordinal below the producer id's current one was decided, and its markers were durable, before
  the next transaction began: the tail's own markers tell (`BY_MARKER`).
- The current one: the coordinator's state tells. Where that is neither Ongoing nor a decision whose
  markers are being written, all markers were durable, and the tail's own tell; as they do where a
  producer aborted without having begun anything, which leaves the ordinal as it was (KIP-890).
- A higher one began after t0.
- An id that no coordinator knows began after t0, or was forgotten before it: an id is given up for
  a new one when its epochs are used up, and expires. It is forgotten only when its last
  transaction is complete. What the log still says of it counts; if the snapshot of the
  coordinator's state that was read is younger, the markers had been durable before that snapshot
  was written. So where a marker lies below the durable ends of the WALs as they were found after
  the snapshots were chosen and before t0, the transaction is decided, and else it began after t0.
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
    """What a coordinator knew of a transaction at t0."""

    COMMITTED = "committed"
    NOT_COMMITTED = "aborted, undecided, or not begun"
    BY_MARKER = "complete: the partitions' markers tell"
    UNKNOWN = "the producer id is not known"


class TailTransaction(NamedTuple):
    """What one partition's tail shows of a transaction that has data there."""

    name: TransactionName
    is_open: bool
    """No marker has ended it in this tail."""
    has_early_marker: bool
    """A marker has ended it in a slot that was durable before t0."""


_Known: TypeAlias = Transaction | None
"""The transaction that is a producer id's current one; None: all of the id's are complete."""


class Decisions:
    """What one coordinator knew at t0: fed with its snapshot's records, then its log's."""

    def __init__(self) -> None:
        self._by_producer: dict[int, _Known] = {}
        self._by_id: dict[str, Transaction] = {}

    def apply(self, record: TransactionRecord) -> None:
        """Take up a record."""
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
    """The transactions in the tails that are no part of the snapshot, besides those whose marker
    in the tail aborts them.

    A name is judged once for all partitions, so that a transaction is in everywhere or nowhere.
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
