"""Messages that are held, given out, taken back and dropped, without a broker."""

from __future__ import annotations

import pickle
from typing import Any

import confluent_kafka
import pytest

from tidelog.sdk.fetched import FetchedMessages
from tidelog.sdk.messages import Message
from tidelog.sdk.serializers import NotDeserializable

Raw = confluent_kafka.Message


def raw(*places: tuple[int, int]) -> list[Raw]:
    """Messages of these partitions and offsets."""
    return [
        Raw(topic="t", partition=partition, offset=offset, value=b"%d" % offset, leader_epoch=4)
        for partition, offset in places
    ]


def held(*places: tuple[int, int]) -> FetchedMessages:
    fetched = FetchedMessages(None)
    fetched.replace(raw(*places))
    return fetched


def offsets(messages: list[Message]) -> list[int]:
    return [each.offset for each in messages]


def test_a_call_and_an_iterator_share_the_messages() -> None:
    fetched = held((0, 1), (0, 2), (0, 3), (0, 4))
    iterator = fetched.messages
    assert next(iterator).offset == 1
    assert fetched.given_last() == {("t", 0): (1, 4)}
    assert offsets(fetched.take(2)) == [2, 3]
    assert fetched.given_last() == {("t", 0): (2, 4)}
    assert next(iterator).offset == 4
    assert fetched.given_last() == {("t", 0): (4, 4)}
    assert fetched.is_empty
    assert fetched.take(5) == []
    assert fetched.given_last() == {}


def test_positions_are_behind_the_records_given_out_since() -> None:
    fetched = held((0, 1), (1, 7), (0, 2), (0, 3))
    fetched.take(3)
    assert fetched.given_since() == {("t", 0): (3, 4), ("t", 1): (8, 4)}
    assert fetched.given_since() == {}
    fetched.take(3)
    assert fetched.given_since() == {("t", 0): (4, 4)}


def test_dropped_partitions_end_the_iterator_and_leave_other_partitions() -> None:
    fetched = held((0, 1), (1, 7), (0, 2), (1, 8), (0, 3))
    fetched.take(2)
    iterator = fetched.messages
    fetched.drop([("t", 0)])
    assert list(iterator) == []
    assert fetched.given_last() == {("t", 1): (7, 4)}
    assert fetched.first_offset(("t", 0)) is None
    assert fetched.first_offset(("t", 1)) == 8
    assert offsets(list(fetched.messages)) == [8]


def test_an_end_comes_behind_all_earlier_messages() -> None:
    fetched = FetchedMessages(None)
    fetched.replace(raw((0, 1), (1, 7), (0, 2)), [(1, ("t", 0), 2), (3, ("t", 1), 8)])
    assert fetched.take_ends() == []
    fetched.take(1)
    assert fetched.take_ends() == [(("t", 0), 2)]
    fetched.drop([("t", 0)])
    assert fetched.take_ends() == []
    fetched.take(1)
    assert fetched.take_ends() == [(("t", 1), 8)]
    assert not fetched.has_ends


@pytest.mark.parametrize("decodes", [False, True])
def test_a_batch_that_ctrl_c_cuts_short_is_given_out_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, decodes: bool
) -> None:
    interruptions = [KeyboardInterrupt()]

    def interrupted(message: Raw, *fields: Any) -> Message:
        if message.offset() == 3 and interruptions:
            raise interruptions.pop()
        return Message(message, *(fields or (message.offset() or 0, None, None)))

    monkeypatch.setattr("tidelog.sdk.fetched.Message", interrupted)
    fetched = FetchedMessages(interrupted if decodes else None)
    fetched.replace(raw((0, 1), (0, 2), (0, 3), (0, 4)), [(4, ("t", 0), 5)])
    assert offsets(fetched.take(1)) == [1]
    with pytest.raises(KeyboardInterrupt):
        fetched.take(3)
    assert fetched.given_last() == {}
    assert fetched.given_since() == {("t", 0): (2, 4)}
    assert not fetched.take_ends()
    assert offsets(fetched.take(3)) == [2, 3, 4]
    assert fetched.given_since() == {("t", 0): (5, 4)}
    assert fetched.take_ends() == [(("t", 0), 5)]


def test_a_message_that_does_not_decode_counts_as_given_out() -> None:
    def decoded(message: Raw) -> Message:
        if message.offset() == 2:
            raise NotDeserializable("no")
        return Message(message, message.offset() or 0, None, int(message.value() or 0))

    fetched = FetchedMessages(decoded)
    fetched.replace(raw((0, 1), (0, 2), (0, 3)))
    # The messages before it are given out: the next position is behind them.
    assert [each.value for each in fetched.take(3)] == [1]
    assert fetched.given_since() == {("t", 0): (2, 4)}
    with pytest.raises(NotDeserializable, match="no"):
        fetched.take(3)
    assert fetched.given_last() == {("t", 0): (2, 4)}
    assert [each.value for each in fetched.take(3)] == [3]
    assert fetched.is_empty


def test_messages_are_equal_by_their_fields_and_can_be_sent_to_other_processes() -> None:
    message = Message.of("t", b"v", b"k", [("a", None)], partition=3, offset=5, timestamp=7)
    assert message == pickle.loads(pickle.dumps(message))
    assert len({message, pickle.loads(pickle.dumps(message))}) == 1
    assert message != Message.of("t", b"other", b"k", [("a", None)], partition=3, offset=5)
    assert message.headers == (("a", None),)
    assert Message.of("t", b"v").timestamp is None
    assert repr(message) == (
        "Message(topic='t', value=b'v', key=b'k', headers=(('a', None),), partition=3, offset=5,"
        " timestamp=7)"
    )
