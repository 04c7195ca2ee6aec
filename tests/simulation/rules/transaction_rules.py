"""Rules on transactions: identities, markers, outcomes, inputs consumed, transitions stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import History, Key, Operation, Outcome, StoredBatch

EPOCH_LAST = 32766
"""The epoch after which a transactional id gets another producer id."""

LEGAL_BEFORE = {
    "Empty": {"Empty", "CompleteCommit", "CompleteAbort"},
    "Ongoing": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "PrepareCommit": {"Ongoing"},
    # The last three: a producer of the second version may abort a transaction that it never began.
    "PrepareAbort": {"Ongoing", "Empty", "CompleteCommit", "CompleteAbort"},
    "CompleteCommit": {"PrepareCommit"},
    "CompleteAbort": {"PrepareAbort"},
    "Dead": {"Empty", "CompleteCommit", "CompleteAbort"},
}
"""Kafka's states, and the states that each may follow. A forgotten id may begin with any state."""


class Ended(NamedTuple):
    """The records that one producer wrote to a partition up to a marker."""

    key: Key
    first_offset: int
    marker: StoredBatch
    values: list[str]


def anomalies(
    history: History, committed: list[Operation], unproved: list[Operation]
) -> Iterator[Anomaly]:
    """The violations of the rules. `committed`: the operations that took effect. `unproved`: the
    operations whose effect is no longer known."""
    yield from _identities(history.operations)
    yield from _transitions(history)
    yield from _consumed(committed, unproved)
    ended: list[Ended] = []
    yield from _markers(history, ended)
    yield from _decisions(history)
    yield from _outcomes(history, ended)
    yield from _visibility(history, ended)


def _identities(operations: list[Operation]) -> Iterator[Anomaly]:
    """Each (producer id, epoch) is issued to one instance. Epochs never go back (5)."""
    issued = [
        (operation, operation.identity)
        for operation in operations
        if operation.identity is not None and operation.completed is not None
    ]
    holders: dict[tuple[int, int], tuple[Operation, str]] = {}
    for operation, identity in issued:
        pair = (identity.producer_id, identity.epoch)
        other, instance = holders.setdefault(pair, (operation, identity.instance))
        if instance != identity.instance:
            yield Anomaly("identity-twice", f"{pair} was issued to {other} and to {operation}")
    events = []
    for operation, identity in issued:
        assert operation.completed is not None
        events.append((operation.invoked, 1, operation, identity))
        events.append((operation.completed, 0, operation, identity))
    newest = {}
    for _, began, operation, identity in sorted(events, key=lambda event: event[:2]):
        known = newest.get(identity.transactional_id)
        place = (identity.producer_id, identity.epoch)
        if not began:
            if known is None or place > known[0]:
                newest[identity.transactional_id] = (place, operation, identity.instance)
            continue
        if known is None or (place > known[0] and place[0] == known[0][0]):
            continue
        if place == known[0] and identity.instance == known[2]:
            continue
        if place[0] > known[0][0] and known[0][1] >= EPOCH_LAST - 1:
            continue
        text = f"{operation} got {place} for {identity.transactional_id}"
        yield Anomaly("epoch-back", f"{text}, after {known[1]} got {known[0]}")


def _transitions(history: History) -> Iterator[Anomaly]:
    """Every stored transition is legal (6), and no transaction stays undecided at the end."""
    states: dict[str, str] = {}
    for stored in history.transactions:
        before = states.get(stored.transactional_id)
        # A snapshot may have replaced the beginning of the log.
        if before is not None and before not in LEGAL_BEFORE[stored.state]:
            text = f"{stored.transactional_id}: {before} was followed by {stored.state}"
            yield Anomaly("illegal-transition", text)
        states[stored.transactional_id] = stored.state
        if stored.state == "Dead":
            del states[stored.transactional_id]
    for transactional_id, state in states.items():
        if state in ("PrepareCommit", "PrepareAbort", "Ongoing"):
            yield Anomaly("undecided", f"{transactional_id} is {state} at the end")


def _consumed(committed: list[Operation], unproved: list[Operation]) -> Iterator[Anomaly]:
    """Each input is consumed by one committed transaction (11)."""
    may_be: dict[tuple[str, Key], list[tuple[int, int]]] = defaultdict(list)
    for operation in unproved:
        for one in operation.advances:
            may_be[one.group, one.key].append((one.start, one.end))
    by_group: dict[tuple[str, Key], list[tuple[int, int, Operation]]] = defaultdict(list)
    for operation in committed:
        for one in operation.advances:
            by_group[one.group, one.key].append((one.start, one.end, operation))
    for (group, key), ranges in by_group.items():
        ranges.sort(key=lambda one: one[:2])
        for (_, end, earlier), (start, _, later) in pairwise(ranges):
            if start < end:
                text = f"{earlier} and {later} both consumed {key}@{start} in {group}"
                yield Anomaly("consumed-twice", text)
            elif start > end and not _lead(may_be[group, key], end, start):
                text = f"{key} from {end} to {start} in {group}, between {earlier} and {later}"
                yield Anomaly("never-consumed", text)


def _lead(ranges: list[tuple[int, int]], source: int, target: int) -> bool:
    """Whether some of the ranges form a chain from one offset to another."""
    reached = {source}
    for start, end in sorted(ranges):
        if start in reached:
            reached.add(end)
    return target in reached


def _markers(history: History, ended: list[Ended]) -> Iterator[Anomaly]:
    """Walk each partition: data of a producer up to its marker is one transaction there (8, 9)."""
    shared_epochs = _shared_epochs(history)
    of_key: dict[Key, list[StoredBatch]] = defaultdict(list)
    for batch in history.batches:
        of_key[batch.key].append(batch)
    for key, batches in of_key.items():
        opened: dict[int, list[StoredBatch]] = {}
        marked: dict[int, int] = {}
        for batch in sorted(batches, key=lambda one: one.base_offset):
            producer = batch.producer_id
            place = f"{key}@{batch.base_offset}"
            if batch.control:
                again = marked.get(producer, -1) >= batch.producer_epoch
                if again and producer not in shared_epochs:
                    text = f"{place}: producer {producer}, epoch {batch.producer_epoch}"
                    yield Anomaly("marker-twice", text)
                marked[producer] = batch.producer_epoch
                data = opened.pop(producer, [])
                if data:
                    values = [value for one in data for value in one.values]
                    ended.append(Ended(key, data[0].base_offset, batch, values))
            elif batch.transactional:
                if batch.producer_epoch < marked.get(producer, -1):
                    text = f"{place}: epoch {batch.producer_epoch} of producer {producer}"
                    yield Anomaly("zombie-write", f"{text} after a marker of {marked[producer]}")
                opened.setdefault(producer, []).append(batch)
        for producer, data in opened.items():
            text = f"{key}@{data[0].base_offset} of producer {producer} has no marker"
            yield Anomaly("hanging-transaction", text)


def _shared_epochs(history: History) -> set[int]:
    """The producer ids that had several transactions in one epoch (before KIP-890)."""
    identities = [one.identity for one in history.operations if one.identity is not None]
    return {one.producer_id for one in identities if not one.own_epochs}


def _decisions(history: History) -> Iterator[Anomaly]:
    """Markers agree with the coordinator's decisions, as far as epochs identify transactions."""
    decided = {
        (stored.producer_id, stored.epoch): stored.state
        for stored in history.transactions
        if stored.state in ("PrepareCommit", "PrepareAbort")
    }
    shared_epochs = _shared_epochs(history)
    for batch in history.batches:
        producer = (batch.producer_id, batch.producer_epoch)
        if not batch.control or not decided or batch.producer_id in shared_epochs:
            continue
        place = f"{batch.key}@{batch.base_offset}"
        if producer in decided and batch.commits != (decided[producer] == "PrepareCommit"):
            text = f"{place} says commit={batch.commits} of {producer}: {decided[producer]}"
            yield Anomaly("marker-against-decision", text)


def _outcomes(history: History, ended: list[Ended]) -> Iterator[Anomaly]:
    """A transaction has one outcome in all partitions, and its client was told this outcome (7)."""
    writers = {
        send.value: operation
        for operation in history.operations
        if operation.kind == "transaction" and not operation.is_repeated
        for send in operation.sends
    }
    parts: dict[int, list[Ended]] = defaultdict(list)
    for one in ended:
        found = {writers[value].number: writers[value] for value in one.values if value in writers}
        if len(found) > 1:
            text = ", ".join(str(operation) for operation in found.values())
            yield Anomaly("mixed-transactions", f"{text} end with one marker in {one.key}")
        for number in found:
            parts[number].append(one)
    for number, of_operation in sorted(parts.items()):
        operation = history.operations[number]
        commits = {one.marker.commits for one in of_operation}
        if len(commits) > 1:
            places = ", ".join(f"{one.key}@{one.marker.base_offset}" for one in of_operation)
            yield Anomaly("split-outcome", f"{operation} has both markers: {places}")
            continue
        keys = [one.key for one in of_operation]
        if len(set(keys)) < len(keys):
            yield Anomaly("split-transaction", f"{operation}: a marker lies between its batches")
        if operation.outcome is Outcome.OK and False in commits:
            yield Anomaly("lost-commit", f"{operation} ended with ABORT in {keys}")
        if operation.outcome is Outcome.FAIL and True in commits:
            yield Anomaly("committed-abort", f"{operation} ended with COMMIT in {keys}")


def _visibility(history: History, ended: list[Ended]) -> Iterator[Anomaly]:
    """At the end readers see exactly the values that are committed or in no transaction (10)."""
    shown: dict[Key, set[str]] = defaultdict(set)
    for operation in history.operations:
        for poll in operation.polls:
            if operation.final and poll.isolation == "read_committed":
                shown[poll.key].update(value for _, value in poll.records)
    if not any(batch.values for batch in history.batches):
        return
    expected: dict[Key, set[str]] = defaultdict(set)
    for batch in history.batches:
        if not batch.transactional and not batch.control:
            expected[batch.key].update(batch.values)
    for one in ended:
        if one.marker.commits:
            expected[one.key].update(one.values)
    for key in sorted(set(shown) | set(expected)):
        for value in sorted(shown[key] - expected[key])[:3]:
            yield Anomaly("shown-uncommitted", f"{value!r} in {key}")
        for value in sorted(expected[key] - shown[key])[:3]:
            yield Anomaly("hidden-committed", f"{value!r} in {key}")
