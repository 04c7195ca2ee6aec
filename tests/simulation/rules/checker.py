"""Checks a history by the rules of Jepsen's Kafka workload. Rules are named as there."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.rules import (
    batch_rules,
    cycles,
    group_rules,
    removal_rules,
    transaction_rules,
    watermark_rules,
    write_rules,
)
from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import (
    History,
    Isolation,
    Key,
    Operation,
    Outcome,
    Poll,
    Send,
)

_READERS: tuple[Isolation, Isolation] = ("read_committed", "read_uncommitted")
EXAMPLES_MAX = 5
"""The number of anomalies of one name that a report spells out."""


@dataclass(slots=True)
class Report:
    """All anomalies of a history."""

    anomalies: list[Anomaly] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Whether every promise was kept."""
        return not self.anomalies

    def names(self) -> set[str]:
        """The rules that were broken."""
        return {anomaly.name for anomaly in self.anomalies}

    def __str__(self) -> str:
        shown: dict[str, int] = defaultdict(int)
        lines = []
        for anomaly in self.anomalies:
            shown[anomaly.name] += 1
            if shown[anomaly.name] <= EXAMPLES_MAX:
                lines.append(str(anomaly))
        lines += [
            f"{name}: {count - EXAMPLES_MAX} more"
            for name, count in shown.items()
            if count > EXAMPLES_MAX
        ]
        return "\n".join(lines)


def check(history: History, *, dense: bool = True) -> Report:
    """Every rule. `dense`: the final batches are from the WAL, so that offsets have no gaps."""
    return Report(list(_Checker(history, dense).run(dense)))


class _Checker:
    """Indexes of a history, and one generator a rule."""

    def __init__(self, history: History, dense: bool) -> None:
        self.history = history
        self._dense = dense
        self.writers: dict[str, tuple[Operation, Send]] = {
            send.value: (operation, send)
            for operation in history.operations
            for send in operation.sends
        }
        self.ok_polls: list[tuple[Operation, Poll]] = [
            (operation, poll)
            for operation in history.operations
            if operation.outcome is Outcome.OK
            for poll in operation.polls
        ]
        self.read_values: dict[Isolation, set[str]] = {isolation: set() for isolation in _READERS}
        for _, poll in self.ok_polls:
            self.read_values[poll.isolation].update(value for _, value in poll.records)
        self.seen = self.read_values["read_committed"] | self.read_values["read_uncommitted"]
        self.versions: dict[Key, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.offsets: dict[str, dict[Key, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._index_versions()
        self.removals = removal_rules.Removals(history, self.offsets, self.must_commit)
        self.visible: dict[Isolation, dict[Key, list[int]]] = {
            isolation: {
                key: sorted(
                    offset
                    for offset, values in versions.items()
                    if any(self._is_visible(value, isolation) for value in values)
                )
                for key, versions in self.versions.items()
            }
            for isolation in _READERS
        }

    def run(self, dense: bool) -> Iterator[Anomaly]:
        for text in self.history.violations:
            yield Anomaly("violation", text)
        yield from self._phantoms()
        yield from self._inconsistent_offsets()
        yield from self._duplicates()
        yield from self._aborted_reads()
        yield from self._intermediate_reads()
        yield from self._precommitted_reads()
        yield from self._lost_writes()
        yield from self._unseen()
        yield from self._polls()
        yield from self._sends()
        yield from write_rules.write_cycles(self.history.operations)
        yield from watermark_rules.watermarks(self.history)
        yield from watermark_rules.stable_offsets(self.history)
        yield from batch_rules.sequences(self.history.batches, whole=dense)
        if dense:
            yield from batch_rules.gaps(self.history.batches)
        committed = [one for one in self.history.operations if self.must_commit(one)]
        unproved = [one for one in self.history.operations if self._may_commit_unproved(one)]
        yield from transaction_rules.anomalies(self.history, committed, unproved)
        yield from group_rules.anomalies(self.history)
        yield from removal_rules.anomalies(self.history, self.removals)
        yield from self._cycles()

    def must_commit(self, operation: Operation) -> bool:
        """Acknowledged, or unknown and proved by a reader."""
        if operation.outcome is Outcome.OK:
            return True
        if operation.outcome is Outcome.FAIL:
            return False
        committed = operation.kind == "transaction"
        seen = self.read_values["read_committed"] if committed else self.seen
        return any(send.value in seen for send in operation.sends)

    def _may_commit_unproved(self, operation: Operation) -> bool:
        """Whether a transaction may have been committed although no reader proves it: all its
        values may be gone."""
        return (
            operation.kind == "transaction"
            and operation.outcome is not Outcome.FAIL
            and len(operation.sends) > 0
            and not self.must_commit(operation)
            and all(self.removals.may_be_gone(send) for send in operation.sends)
        )

    def _index_versions(self) -> None:
        for operation in self.history.operations:
            # Values of aborted transactions lie in the log, too.
            for send in operation.sends:
                if send.offset is not None:
                    self._add_version(send.key, send.offset, send.value)
        for _, poll in self.ok_polls:
            for offset, value in poll.records:
                self._add_version(poll.key, offset, value)

    def _add_version(self, key: Key, offset: int, value: str) -> None:
        self.versions[key][offset].add(value)
        self.offsets[value][key].add(offset)

    def _is_visible(self, value: str, isolation: Isolation) -> bool:
        # Aborted values stay in the WAL, and do not go from there into segments.
        if (isolation == "read_uncommitted" and self._dense) or value not in self.writers:
            return True
        return self.must_commit(self.writers[value][0])

    # --- rules on values ---

    def _phantoms(self) -> Iterator[Anomaly]:
        for operation, poll in self.ok_polls:
            for offset, value in poll.records:
                written = self.writers.get(value)
                if written is None:
                    text = f"{operation} read {value!r} at {poll.key}@{offset}: no client wrote it"
                    yield Anomaly("phantom", text)
                elif written[1].key != poll.key:
                    text = f"{value!r} was sent to {written[1].key}, read at {poll.key}@{offset}"
                    yield Anomaly("misplaced", text)
                elif written[0].invoked > (operation.completed or 0):
                    text = f"{operation} read {value!r} before {written[0]} sent it"
                    yield Anomaly("future-read", text)

    def _inconsistent_offsets(self) -> Iterator[Anomaly]:
        for key, versions in self.versions.items():
            for offset, values in versions.items():
                if len(values) > 1:
                    yield Anomaly("inconsistent-offsets", f"{key}@{offset} is {sorted(values)}")

    def _duplicates(self) -> Iterator[Anomaly]:
        for value, keys in self.offsets.items():
            for key, offsets in keys.items():
                if len(offsets) > 1:
                    text = f"{value!r} lies in {key} at {sorted(offsets)}"
                    yield Anomaly("duplicate", text)

    def _aborted_reads(self) -> Iterator[Anomaly]:
        for reader, poll in self.ok_polls:
            for offset, value in poll.records:
                writer = self.writers[value][0] if value in self.writers else None
                if writer is None or writer.outcome is not Outcome.FAIL:
                    continue
                if writer.kind == "transaction" and poll.isolation == "read_uncommitted":
                    continue
                yield Anomaly("G1a", f"{reader} saw {value!r} of {writer} at {poll.key}@{offset}")

    def _intermediate_reads(self) -> Iterator[Anomaly]:
        for reader, covered, seen in self._readings():
            partly = {
                self.writers[value][0].number: self.writers[value][0]
                for value in seen
                if value in self.writers and len(self.writers[value][0].sends) > 1
            }
            for _, writer in sorted(partly.items()):
                for send in writer.sends:
                    if send.value in seen:
                        continue
                    known = self.removals.known_offsets(send)
                    whole = reader.final and send.key in covered
                    shown = any(_covers(covered.get(send.key, []), one) for one in known)
                    if (whole or shown) and not self._may_have_gone(send, reader):
                        text = f"{reader.process} saw a part of {writer}, not {send.value!r}"
                        yield Anomaly("G1b", text)

    def _may_have_gone(self, send: Send, reader: Operation) -> bool:
        """Whether a value may have been gone when a reader read. A reader has seen every value in
        the range that it covered, except those that compaction took."""
        if reader.final:
            return self.removals.may_be_gone(send)
        return self.removals.may_be_missing(send, 0, reader)

    def _readings(
        self,
    ) -> Iterator[tuple[Operation, dict[Key, list[tuple[int, int]]], set[str]]]:
        """Per process and assignment, read_committed only: ranges covered, values seen."""
        by_process: dict[str, list[Operation]] = defaultdict(list)
        for operation in self.history.operations:
            if operation.outcome is Outcome.OK:
                by_process[operation.process].append(operation)
        for operations in by_process.values():
            covered: dict[Key, list[tuple[int, int]]] = defaultdict(list)
            seen: set[str] = set()
            last: Operation | None = None
            for operation in operations:
                if operation.kind == "assign" and last is not None:
                    yield last, covered, seen
                    covered, seen, last = defaultdict(list), set(), None
                for poll in operation.polls:
                    if poll.isolation == "read_committed":
                        last = operation
                        covered[poll.key].append((poll.start, poll.end))
                        seen.update(value for _, value in poll.records)
            if last is not None:
                yield last, covered, seen

    def _precommitted_reads(self) -> Iterator[Anomaly]:
        for operation in self.history.operations:
            if operation.kind != "transaction":
                continue
            own = {send.value for send in operation.sends}
            for poll in operation.polls:
                for offset, value in poll.records:
                    if value in own and poll.isolation == "read_committed":
                        text = f"{operation} read its own {value!r} at {poll.key}@{offset}"
                        yield Anomaly("precommitted-read", text)

    def _lost_writes(self) -> Iterator[Anomaly]:
        highest: dict[Key, int] = {}
        for _, poll in self.ok_polls:
            for offset, _ in poll.records:
                highest[poll.key] = max(offset, highest.get(poll.key, -1))
        for operation in self.history.operations:
            if not operation.sends or not self.must_commit(operation):
                continue
            for send in operation.sends:
                if send.value in self.seen or send.offset is None:
                    continue
                if self.removals.may_be_gone(send):
                    continue
                if send.offset <= highest.get(send.key, -1):
                    text = f"{send.value!r} of {operation} at {send.key}@{send.offset}"
                    yield Anomaly("lost-write", text)

    def _unseen(self) -> Iterator[Anomaly]:
        final: dict[Key, set[str]] = defaultdict(set)
        for operation, poll in self.ok_polls:
            if operation.final:
                final[poll.key].update(value for _, value in poll.records)
        if not final:
            return
        for operation in self.history.operations:
            if operation.outcome is not Outcome.OK:
                continue
            for send in operation.sends:
                if send.key in self.history.deleted or send.value in final[send.key]:
                    continue
                if not self.removals.may_be_gone(send):
                    text = f"{send.value!r} acknowledged at {send.key}@{send.offset}, {operation}"
                    yield Anomaly("unseen", text)

    # --- rules on order ---

    def _polls(self) -> Iterator[Anomaly]:
        positions: dict[tuple[str, Key], int] = {}
        for operation in self.history.operations:
            if operation.kind == "assign":
                for process, key in [one for one in positions if one[0] == operation.process]:
                    del positions[process, key]
            if operation.outcome is not Outcome.OK:
                continue
            within: dict[Key, int] = {}
            for poll in operation.polls:
                place = (operation.process, poll.key)
                for offset, _ in poll.records:
                    if poll.key in within:
                        last, prefix = within[poll.key], "int-"
                    else:
                        last, prefix = positions.get(place, -1), ""
                    within[poll.key] = offset
                    if last >= 0:
                        yield from self._step(operation, poll, last, offset, prefix)
                if poll.key in within:
                    positions[place] = within[poll.key]
                yield from self._uncovered(operation, poll)

    def _step(
        self, operation: Operation, poll: Poll, last: int, offset: int, prefix: str
    ) -> Iterator[Anomaly]:
        place = f"{operation} read {poll.key}@{last} and then {offset}"
        if offset <= last:
            yield Anomaly(f"{prefix}nonmonotonic-poll", place)
            return
        if self._missing(operation, poll, last + 1, offset, set()):
            yield Anomaly(f"{prefix}poll-skip", place)

    def _uncovered(self, operation: Operation, poll: Poll) -> Iterator[Anomaly]:
        """The records of a poll include all records in the range that it says it covered."""
        found = {offset for offset, _ in poll.records}
        missing = self._missing(operation, poll, poll.start, poll.end, found)
        if missing:
            text = f"{operation} read {poll.key} [{poll.start}, {poll.end}) without {missing[:5]}"
            yield Anomaly("poll-skip", text)

    def _missing(
        self, operation: Operation, poll: Poll, start: int, end: int, found: set[int]
    ) -> list[int]:
        """Offsets of [start, end) whose records are missing without permission."""
        visible = self.visible[poll.isolation].get(poll.key, [])
        versions = self.versions.get(poll.key, {})
        return [
            offset
            for offset in visible[bisect_left(visible, start) : bisect_left(visible, end)]
            if offset not in found
            and not (poll.log_start is not None and offset < poll.log_start)
            and not all(
                self._may_be_unseen(operation, poll.key, offset, value)
                for value in versions[offset]
            )
        ]

    def _may_be_unseen(self, reader: Operation, key: Key, offset: int, value: str) -> bool:
        """Whether a covered range may lack a record: compaction took it, or its transaction was not
        decided when an atomic view began."""
        if self.removals.may_be_compacted(key, offset, value, reader):
            return True
        return value in self.writers and removal_rules.may_be_later(self.writers[value][0], reader)

    def _sends(self) -> Iterator[Anomaly]:
        last: dict[tuple[str, Key], tuple[int, str]] = {}
        for operation in self.history.operations:
            within: set[Key] = set()
            for send in operation.sends:
                if send.offset is None or operation.outcome is not Outcome.OK:
                    continue
                place = (operation.process, send.key)
                before = last.get(place)
                if before is not None and send.offset <= before[0]:
                    prefix = "int-" if send.key in within else ""
                    text = f"{before[1]!r} at {before[0]}, later {send.value!r} at {send.offset}"
                    yield Anomaly(f"{prefix}nonmonotonic-send", f"{send.key}: {text}")
                last[place] = (send.offset, send.value)
                within.add(send.key)

    # --- cycles ---

    def _cycles(self) -> Iterator[Anomaly]:
        """G1c: wr edges with real-time edges; Kafka does not isolate writes, so ww is left out."""
        reads = [
            (self.writers[value][0], reader)
            for reader, poll in self.ok_polls
            if poll.isolation == "read_committed"
            for _, value in poll.records
            if value in self.writers and self.writers[value][0] is not reader
        ]
        for component in cycles.cycles(self.history.operations, reads):
            text = " > ".join(str(operation) for operation in component[:6])
            yield Anomaly("G1c", text)


def _covers(ranges: list[tuple[int, int]], offset: int) -> bool:
    return any(start <= offset < end for start, end in ranges)
