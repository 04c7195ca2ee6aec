"""Clients' regular expressions, in the syntax of RE2 as in Kafka. The whole text must match.

RE2 takes time linear in the text. The factor is the size of the compiled expression, and one of 14
characters can have 4,000 steps. So a broker limits the size as well as the length, and compiles and
matches in a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import re2

from tidelog.errors import TidelogError

PATTERN_LENGTH_MAX: Final = 1024
"""Characters of an expression, unless a setting says otherwise."""
PATTERN_MEMORY_BYTES_MAX: Final = 512 * 1024
"""RE2's memory for one compiled expression and its cached match states.

An expression that needs more is refused.
"""
PATTERN_STEPS_MAX: Final = 2_000
"""Instructions of a compiled expression.

A character of a text costs two nanoseconds for each, in the worst case.
"""
SLICE_STEPS: Final = 20_000_000
"""The steps of one slice of a worker: some tens of milliseconds."""
_COMPILED_MAX: Final = 64


class InvalidPattern(TidelogError):
    """RE2 does not accept the expression, or it is too large."""


def check_pattern(pattern: str) -> None:
    """Raise InvalidPattern if RE2 does not accept the expression."""
    _compiled(pattern)


def check_length(pattern: str, characters_max: int) -> None:
    """Raise InvalidPattern if the expression is too long to compile."""
    if len(pattern) > characters_max:
        raise InvalidPattern(
            f"a regular expression of {len(pattern)} characters is longer than regex.length.max"
            f" ({characters_max}): {_named(pattern)}"
        )


def check_cost(pattern: str) -> int:
    """The steps that the expression costs for each character of a text.

    Raises InvalidPattern if they are too many, or RE2 does not accept the expression.
    """
    steps: int = _compiled(pattern).programsize
    if steps > PATTERN_STEPS_MAX:
        raise InvalidPattern(
            f"{_named(pattern)} is too large a regular expression: {steps} steps, at most"
            f" {PATTERN_STEPS_MAX}; use fewer alternatives and smaller repetitions"
        )
    return steps


def slice_end(texts: Sequence[str], begin: int, steps: int) -> int:
    """The end of the slice of texts that begins at `begin`.

    Each character costs `steps`. The slice has at least one text.
    """
    left = SLICE_STEPS
    for position in range(begin, len(texts)):
        left -= len(texts[position]) * steps
        if left < 0:
            return max(position, begin + 1)
    return len(texts)


def matching(pattern: str, texts: Sequence[str]) -> list[str]:
    """The texts that the expression matches. Raises InvalidPattern."""
    return [each for each in texts if matches(pattern, each)]


def matches(pattern: str, text: str) -> bool:
    """Whether the expression matches the whole text. Raises InvalidPattern."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(_COMPILED_MAX)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    # Capturing RE2 stores every group's match: gigabytes for thousands of groups.
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0]
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise InvalidPattern(f"{_named(pattern)} is not a regular expression: {text}") from error


def _named(pattern: str) -> str:
    return repr(pattern) if len(pattern) <= 80 else f"{pattern[:80]!r}..."
