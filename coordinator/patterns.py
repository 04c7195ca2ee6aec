"""Regular expressions that clients ask with, in the syntax of RE2 as in Kafka: matching takes time
linear in the text, whatever is asked for. The whole text must match."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from tidelog.errors import TidelogError

PATTERN_MEMORY_BYTES_MAX = 1024 * 1024
"""Of one compiled expression; one that needs more is refused."""
_COMPILED_MAX = 1024


class InvalidPattern(TidelogError):
    """An expression that RE2 does not accept."""


def check_pattern(pattern: str) -> None:
    """Raises InvalidPattern."""
    _compiled(pattern)


def matches(pattern: str, text: str) -> bool:
    """Whether the expression describes the whole text. Raises InvalidPattern."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(_COMPILED_MAX)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0]
        text = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise InvalidPattern(f"{pattern!r} is not a regular expression: {text}") from error
