"""The findings of checks, with their remedies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy` is empty if there is nothing to do, or `found` names it."""

    check: str
    verdict: Grade
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Grade.OK, found)


def warning(check: str, found: str, remedy: str = "") -> Finding:
    return Finding(check, Grade.WARNING, found, remedy)


def failed(check: str, found: str, remedy: str = "") -> Finding:
    return Finding(check, Grade.FAILED, found, remedy)
