"""A history of what real clients' applications saw, for the checker of simulated histories. Pure.

Programs report acknowledged records, and the offset of each record that they read. They share no
clock, so all writes count as concurrent, and all reads as later. The checker finds lost, aborted,
partly shown, repeated, unknown and disordered records, and two values at one offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulation.rules.checker import Report, check
from tests.simulation.rules.history import History, Key, Operation, Poll, Send


@dataclass(slots=True)
class _Write:
    process: str
    values: Sequence[tuple[str, str]]
    partition: int | None
    is_aborted: bool


@dataclass(slots=True)
class Observations:
    """The answers to writers and readers. A value is unique in its topic."""

    _writes: list[_Write] = field(default_factory=list)
    _reads: list[tuple[str, Key, int, str]] = field(default_factory=list)

    def wrote(
        self,
        process: str,
        *values: tuple[str, str],
        partition: int | None = None,
        is_aborted: bool = False,
    ) -> None:
        """A writer learned that these topics' values are written or aborted, all or none.

        One process's values of a partition come in the order of their offsets. `partition`: that of
        all values, if the writer chose it.
        """
        self._writes.append(_Write(process, values, partition, is_aborted))

    def read(self, process: str, key: Key, offset: int, value: str) -> None:
        """A reader of committed records got one record."""
        self._reads.append((process, key, offset, value))

    def history(self) -> History:
        """The history. A write has the place at which a reader first found it."""
        history = History()
        places: dict[tuple[str, str], tuple[Key, int]] = {}
        for _, key, offset, value in self._reads:
            places.setdefault((key.topic, value), (key, offset))
        begun = [(write, self._begin(history, write, places)) for write in self._writes]
        for write, operation in begun:
            if write.is_aborted:
                history.fail(operation, "aborted")
            else:
                history.ok(operation)
        for process, key, offset, value in self._reads:
            self._add_read(history, process, key, [(offset, _named(key.topic, value))])
        # Partitions without records were read too.
        for write in self._writes:
            for topic, value in write.values:
                if (topic, value) not in places:
                    self._add_read(history, "reader of all", Key(topic, -1), [])
        return history

    def check(self) -> Report:
        """Judge the history by the rules of simulated histories."""
        return check(self.history(), dense=False)

    def _begin(
        self, history: History, write: _Write, places: dict[tuple[str, str], tuple[Key, int]]
    ) -> Operation:
        sends = []
        for topic, value in write.values:
            key, offset = places.get((topic, value), (Key(topic, -1), None))
            if write.partition is not None and key.partition != write.partition:
                key, offset = Key(topic, write.partition), None
            sends.append(Send(key, _named(topic, value), offset))
        return history.invoke(write.process, "transaction", sends)

    def _add_read(
        self, history: History, process: str, key: Key, records: list[tuple[int, str]]
    ) -> None:
        operation = history.invoke(process, "poll", final=True)
        start = records[0][0] if records else 0
        operation.polls.append(Poll(key, start, start + len(records), records))
        history.ok(operation)


def _named(topic: str, value: str) -> str:
    """A value with its topic, since values are unique in a history and topics may share them."""
    return f"{topic}/{value}"
