"""Rules on watermarks: no answer shows a lower one than was known before.

A reader of the bucket may be ahead of the brokers: it sees durable records before the broker learns
that its put succeeded. So a view bounds later views, but no broker.

A process that was taken for dead while it lives answers reads until it learns of its fence, or its
lease is stale (B3). Such answers may be old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import History, Key, Operation, Outcome, Poll

Event = tuple[int, int, Key, int, Operation]
"""The time, 1 for a question and 0 for an answer, the partition, the offset, and the operation."""


def watermarks(history: History) -> Iterator[Anomaly]:
    """The high watermark in every answer covers all that was known before it was asked for."""
    events = _answers(history, lambda poll: poll.high_watermark)
    for operation in history.operations:
        if operation.outcome is Outcome.OK and operation.completed is not None:
            events += [
                (operation.completed, 0, send.key, send.offset + 1, operation)
                for send in operation.sends
                if send.offset is not None
            ]
    yield from _goes_back(events, "stale-watermark")


def stable_offsets(history: History) -> Iterator[Anomaly]:
    """The last stable offset never goes back, and never lies above the high watermark."""
    for operation in history.operations:
        for poll in operation.polls:
            stable, end = poll.last_stable_offset, poll.high_watermark
            if stable is not None and end is not None and stable > end:
                text = f"{operation} saw {poll.key} stable up to {stable}, and its end at {end}"
                yield Anomaly("unstable-offset", text)
    events = _answers(history, lambda poll: poll.last_stable_offset)
    yield from _goes_back(events, "stale-stable-offset")


def may_be_old(history: History, operation: Operation, poll: Poll) -> bool:
    """Whether a process answered that was taken for dead while its lease was fresh."""
    return history.may_be_old(poll.host, operation.began_at, operation.ended_at)


def _answers(history: History, told: Callable[[Poll], int | None]) -> list[Event]:
    events: list[Event] = []
    for operation in history.operations:
        if operation.outcome is not Outcome.OK or operation.completed is None:
            continue
        for poll in operation.polls:
            known = told(poll)
            if known is not None:
                if not may_be_old(history, operation, poll):
                    events.append((operation.invoked, 1, poll.key, known, operation))
                events.append((operation.completed, 0, poll.key, known, operation))
    return events


def _goes_back(events: list[Event], name: str) -> Iterator[Anomaly]:
    for key, place, known, operation, earlier in going_back(events):
        text = f"{operation} saw {place} of {key}, after {earlier} showed {known}"
        yield Anomaly(name, text)


def going_back(events: list[Event]) -> Iterator[tuple[Key, int, int, Operation, Operation]]:
    """The operations that saw less than was known when they asked: the partition, the offset that
    they saw, the known offset, the operation, and the earlier operation."""
    of_brokers: dict[Key, tuple[int, Operation]] = {}
    of_views: dict[Key, tuple[int, Operation]] = {}
    for _, asked, key, place, operation in sorted(events, key=lambda event: event[:2]):
        if not asked:
            highest = of_views if operation.kind == "view" else of_brokers
            if key not in highest or place > highest[key][0]:
                highest[key] = (place, operation)
            continue
        heard = (of_brokers, of_views) if operation.kind == "view" else (of_brokers,)
        for known in (highest[key] for highest in heard if key in highest):
            if place < known[0]:
                yield key, place, known[0], operation, known[1]
                break
