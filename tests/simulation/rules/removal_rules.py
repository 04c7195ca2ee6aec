"""Rules on removals from a log: by retention, DeleteRecords and log compaction, and by nothing
else.

A log's start never goes back. It moves only over records that a client deleted, or that are too old
or too many, and never over undecided ones. Compaction takes a record only when a later one with its
key was committed. It takes a tombstone only when the tombstone is old enough, and all earlier
records of its key are gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.simulation.policies import TopicPolicy
from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import History, Key, Operation, Outcome, Poll, Send
from tests.simulation.rules.watermark_rules import Event, going_back, may_be_old
from tests.simulation.values import is_tombstone, shared_key

SKEW_SECONDS = 8.0
"""The largest difference between two processes' clocks, and a little more."""
NOTHING = TopicPolicy()


@dataclass(slots=True)
class KeyedRecord:
    """A committed record of a compacted topic, and the operation that wrote it."""

    offset: int
    value: str
    writer: Operation


class Removals:
    """The records that may be missing, by the whole history."""

    def __init__(
        self,
        history: History,
        offsets: dict[str, dict[Key, set[int]]],
        must_commit: Callable[[Operation], bool],
    ) -> None:
        """`offsets`: the places at which each value was found or acknowledged."""
        self._history = history
        self._offsets = offsets
        self.log_starts: dict[Key, int] = {}
        """The furthest known start of each log."""
        for operation in history.operations:
            for poll in operation.polls:
                if poll.log_start is not None and operation.outcome is Outcome.OK:
                    known = self.log_starts.get(poll.key, 0)
                    self.log_starts[poll.key] = max(known, poll.log_start)
        self._sharing: dict[tuple[Key, str], list[KeyedRecord]] = defaultdict(list)
        self._writers: dict[str, Operation] = {}
        for operation in history.operations:
            for send in operation.sends:
                self._writers[send.value] = operation
                shared = shared_key(send.value)
                if shared is not None and self.policy(send.key).compacts and must_commit(operation):
                    for offset in self.known_offsets(send):
                        found = KeyedRecord(offset, send.value, operation)
                        self._sharing[send.key, shared].append(found)

    def policy(self, key: Key) -> TopicPolicy:
        """The policy by which a partition may lose records."""
        return self._history.policies.get(key.topic, NOTHING)

    def known_offsets(self, send: Send) -> set[int]:
        """The known offsets of a value."""
        return self._offsets[send.value].get(send.key, set())

    def sharing(self, key: Key, shared: str) -> list[KeyedRecord]:
        """The committed records of a partition that share a key."""
        return self._sharing[key, shared]

    def may_be_compacted(self, key: Key, offset: int, value: str, reader: Operation | None) -> bool:
        """Whether compaction may have taken a record before a reader was answered, or by now
        (None)."""
        policy, shared = self.policy(key), shared_key(value)
        if not policy.compacts or shared is None:
            return False
        completed = float("inf") if reader is None else reader.completed or 0
        for other in self._sharing[key, shared]:
            if other.offset > offset and other.writer.invoked < completed:
                return True
        if not is_tombstone(value) or value not in self._writers:
            return False
        if reader is None:
            return True
        age = reader.ended_at - self._writers[value].began_at
        return age >= policy.delete_retention_ms / 1000 - SKEW_SECONDS

    def may_be_gone(self, send: Send) -> bool:
        """Whether a committed value may be gone, even if its offset is not known."""
        return self.may_be_missing(send, self.log_starts.get(send.key, 0), None)

    def may_be_missing(self, send: Send, log_start: int, reader: Operation | None) -> bool:
        """Whether a reader of a log with this start may have missed a committed value."""
        known = self.known_offsets(send)
        if not known:
            policy = self.policy(send.key)
            return policy.trims or policy.compacts
        return all(
            offset < log_start or self.may_be_compacted(send.key, offset, send.value, reader)
            for offset in known
        )


def may_be_later(writer: Operation, reader: Operation) -> bool:
    """Whether a transaction may have been decided too late for an atomic view."""
    decided = writer.outcome is Outcome.OK and (writer.completed or 0) < reader.invoked
    return reader.is_atomic and writer.kind == "transaction" and not decided


def anomalies(history: History, removals: Removals) -> Iterator[Anomaly]:
    """The violations of the rules."""
    yield from _log_starts_back(history)
    yield from _log_starts(history, removals)
    yield from _halves(history, removals)
    yield from _resurrected(history, removals)
    yield from _not_compacted(history, removals)


def _answers(operations: list[Operation]) -> Iterator[tuple[Operation, Poll, int]]:
    """All observations of log starts, in the order of completion."""
    done = [one for one in operations if one.outcome is Outcome.OK and one.completed is not None]
    for operation in sorted(done, key=lambda one: one.completed or 0):
        for poll in operation.polls:
            if poll.log_start is not None:
                yield operation, poll, poll.log_start


def _log_starts_back(history: History) -> Iterator[Anomaly]:
    """No answer shows an earlier log start than was known before."""
    events: list[Event] = []
    for operation, poll, log_start in _answers(history.operations):
        if not may_be_old(history, operation, poll):
            events.append((operation.invoked, 1, poll.key, log_start, operation))
        events.append((operation.completed or 0, 0, poll.key, log_start, operation))
    for key, log_start, known, operation, _ in going_back(events):
        text = f"{operation} was told that {key} begins at {log_start}, not at {known}"
        yield Anomaly("log-start-back", text)


def _log_starts(history: History, removals: Removals) -> Iterator[Anomaly]:
    """A log's start moves over removable records only, and never over undecided ones. Aborted
    records are in no segment, so the start moves over them with the records before them."""
    asked: dict[Key, list[Operation]] = defaultdict(list)
    sent: dict[Key, list[tuple[int, Operation]]] = defaultdict(list)
    for operation in history.operations:
        if operation.trim is not None:
            asked[operation.trim.key].append(operation)
        for send in operation.sends if operation.outcome is not Outcome.FAIL else ():
            sent[send.key] += [(each, operation) for each in removals.known_offsets(send)]
    known: dict[Key, int] = {}
    for operation, poll, log_start in _answers(history.operations):
        key, stable = poll.key, poll.last_stable_offset
        if stable is not None and log_start > stable:
            text = f"{operation}: {key} begins at {log_start} and is stable up to {stable}"
            yield Anomaly("log-start-unstable", text)
        before = known.get(key, 0)
        if log_start <= before:
            continue
        known[key] = log_start
        policy = removals.policy(key)
        wanted = (
            one.trim.offset
            for one in asked[key]
            if one.trim is not None and one.invoked < (operation.completed or 0)
        )
        before = max((before, *wanted))
        for offset, writer in sent[key]:
            if before <= offset < log_start and _was_open(writer, operation):
                text = f"{operation}: {key} begins at {log_start}, behind {offset} of {writer}"
                yield Anomaly("log-start-unstable", f"{text}, which was open")
                break
        for offset, writer in sent[key]:
            if before <= offset < log_start and not _may_expire(policy, writer, operation):
                text = f"{operation}: {key} begins at {log_start}, behind {offset} of {writer}"
                yield Anomaly("removed-too-early", text)
                break
        only_by_size = policy.retention_bytes is not None and policy.retention_ms is None
        if only_by_size and poll.high_watermark is not None and log_start >= poll.high_watermark:
            yield Anomaly("removed-too-much", f"{operation}: nothing of {key} is left")


def _was_open(writer: Operation, reader: Operation) -> bool:
    """Whether a transaction that was committed was open when a reader was answered."""
    return (
        writer.outcome is Outcome.OK
        and writer.ends_from is not None
        and (reader.completed or 0) < writer.ends_from
    )


def _may_expire(policy: TopicPolicy, writer: Operation, reader: Operation) -> bool:
    """Whether a record may have exceeded the limit of age or of size when a reader was answered."""
    if policy.retention_bytes is not None:
        return True
    if policy.retention_ms is None:
        return False
    return reader.ended_at - writer.began_at > policy.retention_ms / 1000 - SKEW_SECONDS


def _halves(history: History, removals: Removals) -> Iterator[Anomaly]:
    """An atomic view shows all of a transaction or nothing of it, except values that may be gone
    (G4)."""
    writers = {
        send.value: operation
        for operation in history.operations
        if operation.kind == "transaction"
        for send in operation.sends
    }
    for operation in history.operations:
        if not operation.is_atomic or operation.outcome is not Outcome.OK:
            continue
        polls = {poll.key: poll for poll in operation.polls}
        seen = {value for poll in operation.polls for _, value in poll.records}
        partly = {writers[value].number: writers[value] for value in seen if value in writers}
        for _, writer in sorted(partly.items()):
            for send in writer.sends:
                poll = polls.get(send.key)
                if poll is None or send.value in seen:
                    continue
                if not removals.may_be_missing(send, poll.start, operation):
                    text = f"{operation} shows a part of {writer}, without {send.value!r}"
                    yield Anomaly("half-transaction", text)


def _resurrected(history: History, removals: Removals) -> Iterator[Anomaly]:
    """A reader of a record sees the tombstone that deletes it, if the reader is fast enough."""
    for operation in history.operations:
        if operation.outcome is not Outcome.OK:
            continue
        for poll in operation.polls:
            if not removals.policy(poll.key).compacts:
                continue
            shown: dict[str, int] = {}
            for offset, value in poll.records:
                shared = shared_key(value)
                if shared is not None:
                    shown[shared] = offset
            for shared, offset in sorted(shown.items()):
                yield from _unseen_tombstones(removals, operation, poll, shared, offset)


def _unseen_tombstones(
    removals: Removals, operation: Operation, poll: Poll, shared: str, newest: int
) -> Iterator[Anomaly]:
    """A poll shows a record, and misses the tombstones behind it, although all later records of the
    key are tombstones."""
    later = [
        one
        for one in removals.sharing(poll.key, shared)
        if newest < one.offset < poll.end
        and one.writer.invoked < (operation.completed or 0)
        and not may_be_later(one.writer, operation)
    ]
    if not later or not all(is_tombstone(one.value) for one in later):
        return
    elapsed = operation.ended_at - operation.began_at
    if elapsed < removals.policy(poll.key).delete_retention_ms / 1000 - SKEW_SECONDS:
        text = f"{operation} shows {shared} at {poll.key}@{newest}, but not that it was deleted at"
        yield Anomaly("resurrected", f"{text} {[one.offset for one in later]}")


def _not_compacted(history: History, removals: Removals) -> Iterator[Anomaly]:
    """At the end, compaction has left one record of each key in topics with a maximum lag."""
    for operation in history.operations:
        if operation.kind != "view" or not operation.final:
            continue
        for poll in operation.polls:
            if removals.policy(poll.key).max_compaction_lag_ms is None:
                continue
            found: dict[str, int] = {}
            for offset, value in poll.records:
                shared = shared_key(value) or value
                if shared in found:
                    text = f"{poll.key} holds {shared} at {found[shared]} and at {offset}"
                    yield Anomaly("not-compacted", text)
                found[shared] = offset
