"""Which crash points and which rows of the production tables runs have met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from enum import Enum
from typing import Any

from tests.simulation.world.patches import Patch
from tidelog.coordinator.cluster.state import transitions
from tidelog.coordinator.group.state import classic_group
from tidelog.coordinator.group.state import states as group_states
from tidelog.coordinator.transaction import states as transaction_states
from tidelog.crash_points import CrashPoint
from tidelog.wal.log import producer_state

POINT, ROW = "point ", "row "
"""Beginnings of the names of counts."""


class CountedCrashPoints:
    """Counts the crash points that a broker reaches."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def hit(self, point: CrashPoint) -> None:
        """Count one hit."""
        self._counts[f"{POINT}{point.value}"] += 1


class TableCoverage:
    """Counts the rows of tables by which decisions were taken, while its patches are applied."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def patches(self) -> list[Patch]:
        """The tables as they are now, with rows that count."""
        return [
            (producer_state, "REFUSALS", self._rules("batch", producer_state.REFUSALS)),
            (
                producer_state,
                "MARKER_REFUSALS",
                self._rules("marker", producer_state.MARKER_REFUSALS),
            ),
            (transitions, "TRANSITIONS", self._functions(transitions.TRANSITIONS)),
            (
                classic_group,
                "PREVIOUS_STATES",
                _CountedStates("group", group_states.PREVIOUS_STATES, self.counts),
            ),
            (
                transaction_states,
                "PREVIOUS_STATES",
                _CountedStates("transaction", transaction_states.PREVIOUS_STATES, self.counts),
            ),
        ]

    def _rules(self, table: str, rules: tuple[tuple[Any, int, str], ...]) -> tuple[Any, ...]:
        def counted(is_broken: Callable[[Any], bool]) -> Callable[[Any], bool]:
            def asked(attempt: Any) -> bool:
                broken = is_broken(attempt)
                if broken:
                    self.counts[f"{ROW}{table}: {is_broken.__name__}"] += 1
                return broken

            asked.__name__ = is_broken.__name__
            return asked

        return tuple([(counted(is_broken), *rest) for is_broken, *rest in rules])

    def _functions(
        self, table: Mapping[type, Callable[[Any, Any], None]]
    ) -> Mapping[type, Callable[[Any, Any], None]]:
        def counted(kind: type, apply: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
            def applied(draft: Any, record: Any) -> None:
                self.counts[f"{ROW}record: {kind.__name__}"] += 1
                apply(draft, record)

            return applied

        return {kind: counted(kind, apply) for kind, apply in table.items()}


class _CountedStates(Mapping[Any, Container[Any]]):
    """A table of previous states, which counts the allowed steps."""

    def __init__(
        self, name: str, table: Mapping[Any, Container[Any]], counts: Counter[str]
    ) -> None:
        self._name = name
        self._table = table
        self._counts = counts

    def __getitem__(self, target: Any) -> Container[Any]:
        return _CountedBefore(self._name, target, self._table[target], self._counts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


class _CountedBefore:
    def __init__(
        self, name: str, target: Enum, before: Container[Any], counts: Counter[str]
    ) -> None:
        self._name = name
        self._target = target
        self._before = before
        self._counts = counts

    def __contains__(self, state: object) -> bool:
        found = state in self._before
        if found and isinstance(state, Enum):
            self._counts[_step(self._name, state, self._target)] += 1
        return found


def all_points() -> list[str]:
    """The names of the counts of all crash points."""
    return [f"{POINT}{point.value}" for point in CrashPoint]


def all_rows() -> list[str]:
    """The names of the counts of all rows."""
    rows = [f"{ROW}batch: {rule[0].__name__}" for rule in producer_state.REFUSALS]
    rows += [f"{ROW}marker: {rule[0].__name__}" for rule in producer_state.MARKER_REFUSALS]
    rows += [f"{ROW}record: {kind.__name__}" for kind in transitions.TRANSITIONS]
    for name, table in (
        ("group", group_states.PREVIOUS_STATES),
        ("transaction", transaction_states.PREVIOUS_STATES),
    ):
        rows += [
            _step(name, before, target)
            for target, befores in table.items()
            for before in sorted(befores, key=lambda each: each.name)
        ]
    return rows


def _step(name: str, before: Enum, target: Enum) -> str:
    return f"{ROW}{name}: {before.name} > {target.name}"


def coverage_lines(counts: Mapping[str, int], faults: Mapping[str, int]) -> list[str]:
    """How many faults, crash points and rows were met, and the names of the others.

    `faults`: the weights of the faults of all profiles.
    """
    lines = []
    for what, names in (
        ("faults", [f"fault {name}" for name in faults]),
        ("crash points", all_points()),
        ("table rows", all_rows()),
    ):
        missed = [name.split(" ", 1)[1] for name in names if not counts.get(name)]
        line = f"{what}: {len(names) - len(missed)} of {len(names)} met"
        lines.append(line + (f"; not {', '.join(missed)}" if missed else ""))
    return lines
