"""The findings of a checker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A broken promise: the rule, and the evidence."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"
