"""Regular expressions that name topics (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection

from tidelog.coordinator.patterns import matches


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
