"""Messages as consumers receive them, and as `exactly_once` sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import confluent_kafka

HeaderValue: TypeAlias = bytes | str | None
Headers: TypeAlias = Mapping[str, HeaderValue] | Sequence[tuple[str, HeaderValue]]
"""Headers to send. Text becomes UTF-8. A name may occur twice in a sequence."""
_NO_TIME = (confluent_kafka.TIMESTAMP_NOT_AVAILABLE, 0)


class Message:
    """A message of a topic. Messages with the same fields are equal, and can be pickled.

    Each field costs the thread that iterates, so rarer ones are read when they are asked for.
    """

    __slots__ = ("_fetched", "key", "offset", "value")

    def __init__(self, fetched: confluent_kafka.Message, offset: int, key: Any, value: Any) -> None:
        """For consumers. `Message.of` makes one for a test."""
        self._fetched = fetched
        self.offset = offset
        self.key = key
        """Bytes, or the key deserializer's result."""
        self.value = value
        """Bytes, or the value deserializer's result."""

    @classmethod
    def of(
        cls,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        partition: int = 0,
        offset: int = 0,
        timestamp: int | None = None,
        leader_epoch: int | None = None,
    ) -> Message:
        """A message that no consumer fetched, as a test of a transform needs it."""
        fetched = confluent_kafka.Message(
            topic=topic,
            partition=partition,
            offset=offset,
            headers=list(headers),
            timestamp=_NO_TIME
            if timestamp is None
            else (confluent_kafka.TIMESTAMP_CREATE_TIME, timestamp),
            leader_epoch=-1 if leader_epoch is None else leader_epoch,
        )
        return cls(fetched, offset, key, value)

    @property
    def topic(self) -> str:
        return self._fetched.topic() or ""

    @property
    def partition(self) -> int:
        return self._fetched.partition() or 0

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970; None if the message has no timestamp."""
        kind, milliseconds = self._fetched.timestamp()
        is_there = kind != confluent_kafka.TIMESTAMP_NOT_AVAILABLE and milliseconds >= 0
        return milliseconds if is_there else None

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        found = cast(Sequence[tuple[str, bytes | None]] | None, self._fetched.headers())
        return tuple(found or ())

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the partition's leader that appended the message."""
        return self._fetched.leader_epoch()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        names = ("topic", "value", "key", "headers", "partition", "offset", "timestamp")
        return f"Message({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_fields, self._fields()

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.topic,
            self.value,
            self.key,
            self.headers,
            self.partition,
            self.offset,
            self.timestamp,
            self.leader_epoch,
        )


class NewMessage(NamedTuple):
    """A message to send, with the arguments of `Producer.send`."""

    topic: str
    value: Any
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None


def _from_fields(  # The order of Message._fields.
    topic: str,
    value: Any,
    key: Any,
    headers: tuple[tuple[str, bytes | None], ...],
    partition: int,
    offset: int,
    timestamp: int | None,
    leader_epoch: int | None,
) -> Message:
    return Message.of(
        topic,
        value,
        key,
        headers,
        partition=partition,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=leader_epoch,
    )
