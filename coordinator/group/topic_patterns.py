"""Regular expressions that name topics (KIP-848), in the syntax of RE2 as in Kafka: matching takes
time linear in the name, whatever a client asks for. The whole name must match."""

from __future__ import annotations

from collections.abc import Collection
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


def matches(pattern: str, topic: str) -> bool:
    """Whether the expression names the topic. Raises InvalidPattern."""
    return _compiled(pattern).fullmatch(topic) is not None


class TopicPatterns:
    """Which topics the expressions of a group name, found again only for topics that are new."""

    def __init__(self) -> None:
        self._topics: frozenset[str] = frozenset()
        self._matching: dict[str, frozenset[str]] = {}

    def matching(
        self, patterns: Collection[str], topics: frozenset[str]
    ) -> dict[str, frozenset[str]]:
        """For each of the expressions, those of the topics that it names."""
        added = topics - self._topics
        removed = self._topics - topics
        found = {}
        for pattern in patterns:
            known = self._matching.get(pattern)
            looked_at = topics if known is None else added
            named = frozenset([each for each in looked_at if matches(pattern, each)])
            found[pattern] = named if known is None else (known - removed) | named
        self._topics, self._matching = topics, found
        return found


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
