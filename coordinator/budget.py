"""Limits the memory that the coordinators of one broker hold together. Pure.

All held state counts, also from a log that exceeds the limit. The limit holds for additions alone.
"""

from __future__ import annotations


class Budget:
    """A limit that several coordinators share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> Share:
        """A coordinator's share, empty at first."""
        return Share(self)


class Share:
    """One coordinator's part of a budget. The coordinator gives it back when it ends."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0

    def has_room(self, more: int) -> bool:
        """Whether `more` may be added; always if it is not positive."""
        return more <= 0 or self.budget.held + more <= self.budget.limit

    def hold(self, held: int) -> None:
        """Set the amount that the coordinator holds."""
        self.budget.held += held - self.held
        self.held = held
