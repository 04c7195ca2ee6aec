"""Messages as consumers receive them, and as `exactly_once` sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

HeaderValue: TypeAlias = bytes | str | None
Headers: TypeAlias = Mapping[str, HeaderValue] | Sequence[tuple[str, HeaderValue]]
"""Headers to send. Text becomes UTF-8. A name may occur twice in a sequence."""


class Message(NamedTuple):
    """A message of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    """Milliseconds since 1970; None if the message has no timestamp."""
    key: Any
    """Bytes, or the key deserializer's result."""
    value: Any
    """Bytes, or the value deserializer's result."""
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int | None = None
    """The epoch of the partition's leader that appended the message."""


class NewMessage(NamedTuple):
    """A message to send, with the arguments of `Producer.send`."""

    topic: str
    value: Any
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None
