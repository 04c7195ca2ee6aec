"""Expressions that name topics."""

from __future__ import annotations

import pytest

from tidelog.coordinator.group.assign.topic_patterns import TopicPatterns
from tidelog.coordinator.patterns import (
    PATTERN_LENGTH_MAX,
    SLICE_STEPS,
    InvalidPattern,
    check_cost,
    check_length,
    check_pattern,
    matches,
    matching,
    slice_end,
)


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("flights.*", "flights_2013", True),
        ("flights", "flights_2013", False),
        ("lights.*", "flights", False),
        ("a|b", "b", True),
        ("(f)(l)ights", "flights", True),
        ("[ab]{2}", "ab", True),
        ("(?i)FLIGHTS", "flights", True),
        ("", "flights", False),
    ],
)
def test_the_whole_name_must_match(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected


@pytest.mark.parametrize("pattern", ["(", "[", "*", r"(a)\1", "(?=a)", "(?:a{1000}){1000}"])
def test_an_expression_that_re2_does_not_accept_is_refused(pattern: str) -> None:
    """As in Kafka: RE2 refuses back references and look-ahead, since they take more than linear
    time."""
    with pytest.raises(InvalidPattern):
        check_pattern(pattern)


def test_an_expression_that_backtracks_elsewhere_takes_no_time() -> None:
    assert not matches("(a*)*b", "a" * 249)


def test_groups_cost_no_memory() -> None:
    """RE2 does not record where groups matched: for 8,000 groups that took gigabytes for a single
    name."""
    assert check_cost("(.*)" * 8000) < 100
    assert matches("(.*)" * 8000, "flights")


def test_an_expression_may_not_be_long() -> None:
    check_length("a" * PATTERN_LENGTH_MAX, PATTERN_LENGTH_MAX)
    with pytest.raises(InvalidPattern, match=r"longer than regex.length.max \(1024\)") as caught:
        check_length("a" * 32_000, PATTERN_LENGTH_MAX)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("pattern", [".*[ab].{500}", "(.*a|.*b)" * 100])
def test_an_expression_may_not_be_short_and_large(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match=r"too large a regular expression: [0-9]+ steps"):
        check_cost(pattern)


def test_a_slice_is_smaller_the_more_an_expression_costs() -> None:
    texts = ["x" * 100] * 1_000_000
    assert slice_end(texts, 0, 10) == SLICE_STEPS // (100 * 10)
    assert slice_end(texts, 0, 2_000) == 100
    assert slice_end(texts, 999_999, 2_000) == 1_000_000
    assert slice_end(["x" * 2**30], 0, 2_000) == 1
    assert slice_end([], 0, 2_000) == 0
    assert matching("a.*", ["a1", "b1", "a2"]) == ["a1", "a2"]


def test_only_new_topics_are_tried() -> None:
    patterns = TopicPatterns(names_max=100)

    def named(pattern: str, *topics: str) -> tuple[set[str], set[str]]:
        """The tried topics, and all topics that the expression names."""
        untried = patterns.untried(pattern, frozenset(topics))
        found = matching(pattern, untried)
        return set(untried), set(patterns.store_matches(pattern, frozenset(topics), found))

    assert named("a.*", "a1", "b1") == ({"a1", "b1"}, {"a1"})
    assert named("a.*", "a1", "b1", "a2", "b2") == ({"a2", "b2"}, {"a1", "a2"})
    assert named("a.*", "a2", "b2") == (set(), {"a2"})
    assert named("b.*", "a2", "b2") == ({"a2", "b2"}, {"b2"})
    assert named("a.*", "a1", "b1") == ({"a1", "b1"}, {"a1"})
    assert named("a.*") == (set(), set())


def test_remembered_matches_have_a_limit() -> None:
    patterns = TopicPatterns(names_max=5)
    topics = frozenset(["a1", "a2", "b1", "b2", "c1"])
    for pattern in ("a.", "b.", "c.", ".*"):
        patterns.store_matches(pattern, topics, matching(pattern, sorted(topics)))
    assert len(patterns.untried("a.", topics)) == 5, "this expression was used longest ago"
    assert not patterns.untried(".*", topics), "one expression is kept with all its topics"
