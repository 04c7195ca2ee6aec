"""Each rule on a topic that is created again, with a history that breaks it."""

from __future__ import annotations

import pytest

from tests.simulation.rules.history import History, Key, Send
from tests.simulation.rules.reborn_rules import offset_of, old_offsets, wrong_values

PLACE, OTHER = Key("t", 0), Key("t", 1)


def transaction(history: History, outcome: str, value: str) -> None:
    operation = history.invoke("x", "transaction", [Send(PLACE, value)])
    if outcome == "ok":
        history.ok(operation)
    elif outcome == "fail":
        history.fail(operation, "on purpose")
    else:
        history.unknown(operation, "no answer")


def test_offsets_of_the_newest_topic_may_be_committed() -> None:
    assert old_offsets({PLACE: offset_of(3, 0), OTHER: offset_of(3, 41)}, births=3) == {}


def test_an_offset_of_a_deleted_topic_is_noticed() -> None:
    committed = {PLACE: offset_of(2, 41), OTHER: offset_of(3, 42)}
    assert old_offsets(committed, births=3) == {PLACE: offset_of(2, 41)}


@pytest.mark.parametrize("outcome", ["ok", "unknown"])
def test_values_may_be_seen_once_or_not_at_all(outcome: str) -> None:
    history = History()
    transaction(history, outcome, "seen")
    transaction(history, outcome, "gone with a topic")
    assert list(wrong_values(history.operations, {"seen": 1})) == []


def test_a_value_that_lies_twice_is_noticed() -> None:
    history = History()
    transaction(history, "ok", "v")
    (text,) = wrong_values(history.operations, {"v": 2})
    assert "'v'" in text
    assert "2 times" in text


def test_a_value_of_an_aborted_transaction_is_noticed() -> None:
    history = History()
    transaction(history, "fail", "v")
    (text,) = wrong_values(history.operations, {"v": 1})
    assert "'v'" in text
    assert "is seen" in text
