"""Regular expressions that clients ask with, in the syntax of RE2 as in Kafka. The whole text must
match.

RE2 takes time linear in the text, but the factor is the size of the compiled expression, and one of
14 characters can have 4,000 steps. So a broker limits the size as well as the length, and both
compiles and matches in a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import re2

from tidelog.errors import TidelogError

PATTERN_LENGTH_MAX: Final = 1024
"""Characters of an expression, where no setting says otherwise."""
PATTERN_MEMORY_BYTES_MAX: Final = 512 * 1024
"""RE2's memory for one compiled expression, and for the states that it remembers while it matches.
An expression that needs more is refused."""
PATTERN_STEPS_MAX: Final = 2_000
"""Instructions of a compiled expression. A character of a text costs two nanoseconds for each, in
the worst case."""
SLICE_STEPS: Final = 20_000_000
"""What a worker does at a time, in steps of an expression: some tens of milliseconds."""
_COMPILED_MAX: Final = 64


class InvalidPattern(TidelogError):
    """An expression that RE2 does not accept, or that is too large."""


def check_pattern(pattern: str) -> None:
    """Raises InvalidPattern where RE2 does not accept the expression."""
    _compiled(pattern)


def check_length(pattern: str, characters_max: int) -> None:
    """Raises InvalidPattern where the expression is too long to be compiled at all."""
    if len(pattern) > characters_max:
        raise InvalidPattern(
            f"a regular expression of {len(pattern)} characters is longer than regex.length.max"
            f" ({characters_max}): {_named(pattern)}"
        )


def check_cost(pattern: str) -> int:
    """What a character of a text costs with the expression, in steps. Raises InvalidPattern where
    that is too much, or where RE2 does not accept the expression."""
    steps: int = _compiled(pattern).programsize
    if steps > PATTERN_STEPS_MAX:
        raise InvalidPattern(
            f"{_named(pattern)} is too large a regular expression: {steps} steps, at most"
            f" {PATTERN_STEPS_MAX}; use fewer alternatives and smaller repetitions"
        )
    return steps


def slice_end(texts: Sequence[str], begin: int, steps: int) -> int:
    """Where a slice of the texts ends that begins there, if each character costs so many steps. It
    has at least one text."""
    left = SLICE_STEPS
    for position in range(begin, len(texts)):
        left -= len(texts[position]) * steps
        if left < 0:
            return max(position, begin + 1)
    return len(texts)


def matching(pattern: str, texts: Sequence[str]) -> list[str]:
    """Those of the texts that the expression describes. Raises InvalidPattern."""
    return [each for each in texts if matches(pattern, each)]


def matches(pattern: str, text: str) -> bool:
    """Whether the expression describes the whole text. Raises InvalidPattern."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(_COMPILED_MAX)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    # With groups RE2 notes where each of them matched: gigabytes, where there are thousands.
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0]
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise InvalidPattern(f"{_named(pattern)} is not a regular expression: {text}") from error


def _named(pattern: str) -> str:
    return repr(pattern) if len(pattern) <= 80 else f"{pattern[:80]!r}..."
