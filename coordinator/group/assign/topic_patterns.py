"""Caches the topics that the regular expressions of consumer groups match (KIP-848)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class _Found(NamedTuple):
    """The topics that an expression was tried on, and the matching ones."""

    topics: frozenset[str]
    named: frozenset[str]


class TopicPatterns:
    """Caches matches of expressions, so that only new topics are tried.

    It keeps the most recently used expressions, as far as there is room.
    """

    def __init__(self, names_max: int) -> None:
        """`names_max` limits the matching topic names of all cached expressions."""
        self._names_max = names_max
        self._names = 0
        self._found: OrderedDict[str, _Found] = OrderedDict()

    def untried(self, pattern: str, topics: frozenset[str]) -> list[str]:
        """The topics that the expression was not tried on."""
        known = self._found.get(pattern)
        return list(topics if known is None else topics - known.topics)

    def store_matches(
        self, pattern: str, topics: frozenset[str], named: Sequence[str]
    ) -> frozenset[str]:
        """Cache the expression's matches; return all of these topics that it matches.

        `named` are the matching ones of the untried topics.
        """
        known = self._found.pop(pattern, None)
        found = frozenset(named)
        if known is not None:
            self._names -= len(known.named)
            found |= known.named & topics
        self._found[pattern] = _Found(topics, found)
        self._names += len(found)
        while self._names > self._names_max and len(self._found) > 1:
            _, oldest = self._found.popitem(last=False)
            self._names -= len(oldest.named)
        return found
