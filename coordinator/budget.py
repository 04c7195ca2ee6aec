"""How much the coordinators of one broker keep in memory together, and how much they may. Pure.

All that they keep counts, admitted or read from a log that has more than the limit. The limit
holds for additions alone.
"""

from __future__ import annotations


class Budget:
    """A limit that several coordinators share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> Share:
        """What one coordinator holds of it: nothing yet."""
        return Share(self)


class Share:
    """What one coordinator holds of a budget. To be given back when the coordinator ends."""

    __slots__ = ("budget", "held")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0

    def has_room(self, more: int) -> bool:
        """Whether so much may be added. What does not add anything always may be."""
        return more <= 0 or self.budget.held + more <= self.budget.limit

    def hold(self, held: int) -> None:
        """The coordinator holds so much now."""
        self.budget.held += held - self.held
        self.held = held
