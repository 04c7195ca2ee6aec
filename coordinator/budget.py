"""Limits the memory that the coordinators of one broker hold together. Pure.

All held state counts, also from a log that exceeds the limit. The limit holds for additions alone.
"""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.decision import LimitMet
from tidelog.protocol.error_codes import ErrorCode

ID_LENGTH_MAX: Final = "id.length.max"


def limit_met(error: ErrorCode, setting: str, why: str) -> LimitMet:
    """The refusal, with the name of the setting in its reason."""
    return LimitMet(error, setting, f"{why} ({setting})")


class Budget:
    """A limit that several coordinators share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @classmethod
    def unlimited(cls) -> Budget:
        """The budget of a coordinator on its own, or of a reader of its log."""
        return cls(2**63)

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

    def refusal(self, more: int, error: ErrorCode, setting: str, why: str) -> LimitMet | None:
        """The refusal of `more`; None if it may be added. `why` has places for `held`, `more` and
        `limit`."""
        if self.has_room(more):
            return None
        budget = self.budget
        why = why.format(held=budget.held, more=more, limit=budget.limit)
        return limit_met(error, setting, why)

    def hold(self, held: int) -> None:
        """Set the amount that the coordinator holds."""
        self.budget.held += held - self.held
        self.held = held
