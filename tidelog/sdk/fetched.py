"""Messages that a consumer has fetched, and how far it has given them out. Pure.

Iterating costs no call of ours for each message: how many were given out is asked of the iterator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, TypeAlias, cast

import confluent_kafka

from tidelog.sdk.messages import Message
from tidelog.sdk.serializers import NotDeserializable

Place: TypeAlias = tuple[str, int]
"""The topic and the partition."""
Position: TypeAlias = tuple[int, int | None]
"""The offset and the epoch of its leader."""
Decoder: TypeAlias = Callable[[confluent_kafka.Message], Message]


class FetchedMessages:
    """Messages in their order; some of them were given out, the last ones by the last call."""

    messages: Iterator[Message]
    """Those that were not given out. Stops when others take their place."""

    def __init__(self, decoder: Decoder | None) -> None:
        """Without a decoder keys and values stay bytes."""
        self._decoder = decoder
        self._ends: deque[tuple[int, Place, int]] = deque()
        """Ends of partitions, and how many messages are before each."""
        self._given: dict[Place, Position] = {}
        """The positions that `drop` has kept of `given_last`."""
        self._raw: list[confluent_kafka.Message] = []
        self._noted = 0
        self._hold([])

    @property
    def is_empty(self) -> bool:
        """Whether all messages were given out. Ends of partitions may be left."""
        return not length_hint(self._source)

    @property
    def has_ends(self) -> bool:
        """Whether ends of partitions were not taken."""
        return bool(self._ends)

    def replace(
        self,
        messages: Iterable[confluent_kafka.Message],
        ends: Iterable[tuple[int, Place, int]] = (),
    ) -> None:
        """Hold these messages, and ends with the number of messages before each."""
        self._hold(messages)
        self._ends = deque(ends)

    def take_ends(self) -> list[tuple[Place, int]]:
        """The partitions' ends behind the messages that were given out, once."""
        found: list[tuple[Place, int]] = []
        while self._ends and self._ends[0][0] <= self._next:
            _, place, offset = self._ends.popleft()
            found.append((place, offset))
        return found

    def begin_call(self) -> None:
        """The messages of the last call count as consumed."""
        self._call = self._call_end = self._next
        self._given = {}

    def take(self, records_max: int) -> list[Message]:
        """Up to so many messages, by a call of their own.

        Ends before a message that does not decode: the next call raises its error.
        """
        self.begin_call()
        taken: list[Message] = []
        try:
            # Keeps those before an error.
            taken.extend(islice(self.messages, records_max))
        except NotDeserializable:
            if not taken:
                raise
            self._step_back()
        except BaseException:
            # Ctrl-C comes between two messages: the caller gets none of them.
            given, self._raw = self._raw, list(self._raw)
            given.clear()
            self._give_from(self._call)
            raise
        finally:
            self._call_end = self._next
        return taken

    def given_since(self) -> dict[Place, Position]:
        """The positions behind the messages that were given out since this was asked last."""
        noted, self._noted = self._noted, self._next
        lasts = _by_place(self._raw[noted : self._noted])
        return {place: _position(each, behind=1) for place, each in lasts.items()}

    def given_last(self) -> dict[Place, Position]:
        """Where the messages of the last call begin."""
        end = self._next
        if end > self._call_end:
            # The application iterates: each message is a call.
            return {place_of(self._raw[end - 1]): _position(self._raw[end - 1])}
        firsts = _by_place(self._raw[self._call : end][::-1])
        return {place: _position(each) for place, each in firsts.items()} | self._given

    def first_offset(self, place: Place) -> int | None:
        """The first offset of a partition that was not given out."""
        return next((each.offset() for each in self._left() if place_of(each) == place), None)

    def drop(self, places: Iterable[Place]) -> None:
        """Forget all messages of these partitions, those that were given out too."""
        gone, given = frozenset(places), self.given_last()
        ends = [(number - self._next, place, end) for number, place, end in self._ends]
        left = self._left()
        self._ends = deque(
            (sum(place_of(each) not in gone for each in left[: max(0, number)]), place, end)
            for number, place, end in ends
            if place not in gone
        )
        self._hold([each for each in left if place_of(each) not in gone])
        self._given = {place: at for place, at in given.items() if place not in gone}

    @property
    def _next(self) -> int:
        """How many messages were given out."""
        return len(self._raw) - length_hint(self._source)

    def _step_back(self) -> None:
        """The last message was not given out."""
        cast(Any, self._source).__setstate__(self._next - 1)

    def _left(self) -> list[confluent_kafka.Message]:
        return self._raw[self._next :]

    def _hold(self, messages: Iterable[confluent_kafka.Message]) -> None:
        # Ends the iterator that an application may hold.
        self._raw.clear()
        self._raw = list(messages)
        self._give_from(0)
        self._call = self._call_end = self._noted = 0
        self._given = {}

    def _give_from(self, first: int) -> None:
        """Let `messages` go on at a place of those that are held."""
        self._source = iter(self._raw)
        cast(Any, self._source).__setstate__(first)
        if self._decoder is not None:
            self.messages = map(self._decoder, self._source)
            return
        of, raw = confluent_kafka.Message, self._raw[first:]
        offsets = cast(Iterator[int], map(of.offset, raw))
        self.messages = map(Message, self._source, offsets, map(of.key, raw), map(of.value, raw))


def is_faultless(fetched: Sequence[confluent_kafka.Message]) -> bool:
    """Whether all are messages, none an event."""
    return not any(map(confluent_kafka.Message.error, fetched))


def place_of(fetched: confluent_kafka.Message) -> Place:
    return fetched.topic() or "", fetched.partition() or 0


def _by_place(messages: list[confluent_kafka.Message]) -> dict[Place, confluent_kafka.Message]:
    """The last message of each partition."""
    of = confluent_kafka.Message
    topics = set(map(of.topic, messages))
    if len(topics) > 1:
        return {place_of(each): each for each in messages}
    # Every batch is looked at. Without Python code for each message that costs half.
    (topic,) = topics or {None}
    lasts = dict(zip(map(of.partition, messages), messages, strict=True))
    return {(topic or "", number or 0): each for number, each in lasts.items()}


def _position(fetched: confluent_kafka.Message, *, behind: int = 0) -> Position:
    return (fetched.offset() or 0) + behind, fetched.leader_epoch()
