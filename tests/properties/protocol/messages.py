"""Random messages of any type and version.

Hypothesis chooses a seed and how rich the message may be; the values come from a plain random
generator, since to draw each of a thousand values from Hypothesis takes fifty times as long.
"""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

from tidelog.protocol.api import OWN_KEYS_FROM, registered, request_type, response_type
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.fields import OWN_TAGS_FROM, Field, WireKind, WireType
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.wire import NULL_UUID

ALL: list[tuple[type[Message], int]] = [
    (message_type, version)
    for key in registered()
    if key < OWN_KEYS_FROM
    for message_type in (request_type(key), response_type(key))
    for version in message_type.VERSIONS
]
"""Every version of every message of Kafka's."""

RICHNESS_MAX = 3
"""The maximum length of an array. The lengths of other values grow with it."""

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
_ERROR_CODES = [int(code) for code in ErrorCode]
_YEAR_3000_S = 32_503_680_000
"""kio turns times into datetimes of whole seconds."""


def case_name(case: tuple[type[Message], int]) -> str:
    """The name of a case in pytest's output."""
    return f"{case[0].__name__}-{case[1]}"


def random_message(
    message_type: type[Message], version: int, seed: int, richness: int, *, own: bool = True
) -> Any:
    """A message with any values in the fields of `version` and the defaults in the others.

    `own`: whether Tidelog's own fields in Kafka's messages count.
    """
    return _Generator(random.Random(seed), version, richness, own).struct(message_type)


def is_own(field: Field) -> bool:
    """Whether Kafka's message lacks this field."""
    return field.tag is not None and field.tag >= OWN_TAGS_FROM


class _Generator:
    def __init__(self, chance: random.Random, version: int, richness: int, own: bool) -> None:
        self._chance = chance
        self._version = version
        self._richness = richness
        self._own = own

    def struct(self, type_: type[Struct]) -> Any:
        present = (
            field
            for field in type_.FIELDS
            if self._version in field.versions and (self._own or not is_own(field))
        )
        return type_(**{field.name: self._value(field) for field in present})

    def _value(self, field: Field) -> Any:
        if self._version in field.nullable and self._chance.random() < 0.2:
            return None
        value = self._of_type(field.type, field.name)
        if field.tag is not None:
            if self._chance.random() < 0.4:
                return [] if field.default == () else field.default
            if field.type.struct is not None and value == field.type.struct():
                # Kafka does not tell a tagged structure with its defaults from a missing one.
                return None
        return value

    def _of_type(self, type_: WireType, name: str) -> Any:
        match type_.kind:
            case WireKind.FIXED:
                return self._number(type_.code, name)
            case WireKind.UUID:
                return self._chance.choice((NULL_UUID, UUID(int=self._chance.getrandbits(128))))
            case WireKind.STRING:
                alphabet = "a-Zü€\U0001f30a\0"
                return "".join(self._chance.choices(alphabet, k=self._length()))
            case WireKind.BINARY | WireKind.RECORDS:
                return self._chance.randbytes(self._length() ** 2)
            case WireKind.STRUCT:
                assert type_.struct is not None
                return self.struct(type_.struct)
            case WireKind.ARRAY:
                assert type_.element is not None
                struct = type_.element.kind is WireKind.STRUCT
                length = self._chance.randint(0, self._richness) if struct else self._length()
                return [self._of_type(type_.element, "") for _ in range(length)]

    def _length(self) -> int:
        """Usually a small length; now and then one around the length whose prefix takes two
        bytes."""
        if self._chance.random() < 0.05 * self._richness:
            return self._chance.randint(124, 131)
        return self._chance.randint(0, 2 * self._richness)

    def _number(self, code: str, name: str) -> float:
        if code == "d":
            return self._chance.choice((0.0, -1.5, 1e300, self._chance.random()))
        if code == "?":
            return self._chance.random() < 0.5
        if name.endswith("error_code"):
            return self._chance.choice(_ERROR_CODES)
        if code == "q" and name.endswith("_ms"):
            return self._chance.randint(0, _YEAR_3000_S) * 1000
        if code == "H":
            return self._chance.randrange(1 << 16)
        bits = self._chance.choice((3, _BITS[code]))
        return self._chance.randrange(-(1 << bits - 1), 1 << bits - 1)
