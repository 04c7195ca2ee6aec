"""Expressions that name topics."""

from __future__ import annotations

import pytest

from tidelog.coordinator.group.topic_patterns import TopicPatterns
from tidelog.coordinator.patterns import InvalidPattern, check_pattern, matches


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("flights.*", "flights_2013", True),
        ("flights", "flights_2013", False),
        ("lights.*", "flights", False),
        ("a|b", "b", True),
        ("[ab]{2}", "ab", True),
        ("(?i)FLIGHTS", "flights", True),
        ("", "flights", False),
    ],
)
def test_the_whole_name_must_match(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


@pytest.mark.parametrize("pattern", ["(", "[", "*", r"(a)\1", "(?=a)", "(?:a{1000}){1000}"])
def test_what_re2_does_not_accept_is_refused(pattern: str) -> None:
    """Back references and look-ahead among it, as in Kafka: what takes more than linear time."""
    with pytest.raises(InvalidPattern):
        check_pattern(pattern)


def test_an_expression_that_backtracks_elsewhere_takes_no_time() -> None:
    assert not matches("(a*)*b", "a" * 249)


def test_topics_are_found_and_forgotten_as_they_come_and_go() -> None:
    patterns = TopicPatterns()
    assert patterns.matching(["a.*"], frozenset({"a1", "b1"})) == {"a.*": {"a1"}}
    found = patterns.matching(["a.*", "b.*"], frozenset({"a2", "b1", "b2"}))
    assert found == {"a.*": {"a2"}, "b.*": {"b1", "b2"}}
    assert patterns.matching(["b.*"], frozenset({"b2"})) == {"b.*": {"b2"}}
    assert patterns.matching(["a.*"], frozenset({"a1", "b2"})) == {"a.*": {"a1"}}
    assert patterns.matching([], frozenset()) == {}
