"""The possible values of a setting: its type, its notation, and the rule for allowed values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum, IntEnum
from typing import Protocol, TypeAlias

from tidelog.errors import InvalidConfiguration

SettingValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A parsed value; None if there is neither a value nor a default."""

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class InvalidValue(InvalidConfiguration):
    """A value is not allowed for a setting; the message says which values are."""


class SettingType(IntEnum):
    """A setting's type. The numbers are those of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGER_RANGES: Mapping[SettingType, tuple[int, int]] = {
    SettingType.SHORT: (-(2**15), 2**15 - 1),
    SettingType.INT: (-(2**31), INT_MAX),
    SettingType.LONG: (-(2**63), LONG_MAX),
}
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_KIND_WORDS: Mapping[SettingType, str] = {
    SettingType.BOOLEAN: "true or false",
    SettingType.STRING: "a text",
    SettingType.INT: "a 32-bit integer",
    SettingType.SHORT: "a 16-bit integer",
    SettingType.LONG: "a 64-bit integer",
    SettingType.DOUBLE: "a number",
    SettingType.LIST: "a comma-separated list",
    SettingType.CLASS: "a text",
    SettingType.PASSWORD: "a text",
}


def parse_value(kind: SettingType, raw: object) -> SettingValue:
    """The value of a text (flag, environment, request) or of a TOML value.

    Raises InvalidValue if it is not of the kind.
    """
    if isinstance(raw, str):
        return _PARSERS[kind](raw.strip())
    if kind is SettingType.BOOLEAN and isinstance(raw, bool):
        return raw
    if kind in _INTEGER_RANGES and isinstance(raw, int) and not isinstance(raw, bool):
        return _in_range(kind, raw)
    if kind is SettingType.DOUBLE and isinstance(raw, int | float) and not isinstance(raw, bool):
        return _finite(float(raw))
    if (
        kind is SettingType.LIST
        and isinstance(raw, list)
        and all(isinstance(item, str) for item in raw)
    ):
        return tuple(item.strip() for item in raw)
    raise InvalidValue(f"must be {_KIND_WORDS[kind]}")


def format_value(value: SettingValue) -> str | None:
    """The value as text, in the form of requests and answers."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _boolean(text: str) -> SettingValue:
    if text.lower() not in ("true", "false"):
        raise InvalidValue("must be true or false")
    return text.lower() == "true"


def _in_range(kind: SettingType, number: int) -> int:
    low, high = _INTEGER_RANGES[kind]
    if not low <= number <= high:
        raise InvalidValue(f"must be {_KIND_WORDS[kind]} ({low} to {high})")
    return number


def _integer(kind: SettingType) -> Callable[[str], SettingValue]:
    def parse(text: str) -> SettingValue:
        # int() also accepts underscores and other scripts' digits, and gigabytes of them.
        if len(text) > 32 or not _INTEGER.match(text):
            raise InvalidValue(f"must be {_KIND_WORDS[kind]}")
        return _in_range(kind, int(text))

    return parse


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise InvalidValue("must be a finite number")
    return number


def _parse_double(text: str) -> SettingValue:
    try:
        return _finite(float(text))
    except ValueError:
        raise InvalidValue("must be a number") from None


def _list(text: str) -> SettingValue:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: Mapping[SettingType, Callable[[str], SettingValue]] = {
    SettingType.BOOLEAN: _boolean,
    SettingType.STRING: lambda text: text,
    SettingType.INT: _integer(SettingType.INT),
    SettingType.SHORT: _integer(SettingType.SHORT),
    SettingType.LONG: _integer(SettingType.LONG),
    SettingType.DOUBLE: _parse_double,
    SettingType.LIST: _list,
    SettingType.CLASS: lambda text: text,
    SettingType.PASSWORD: lambda text: text,
}


class Validator(Protocol):
    """A rule for the allowed values of a kind."""

    @property
    def words(self) -> str:
        """The rule, for messages and the documentation: "at least 1"."""
        ...

    def allows(self, value: SettingValue) -> bool:
        """Whether the value is allowed; only called with values of the setting's kind."""
        ...


@dataclass(frozen=True, slots=True)
class Anything:
    """Every value of the kind."""

    words: str = ""

    def allows(self, value: SettingValue) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Numbers from `low` on."""

    low: int

    @property
    def words(self) -> str:
        return f"at least {self.low}"

    def allows(self, value: SettingValue) -> bool:
        return isinstance(value, int | float) and value >= self.low


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers from `low` to `high`, or exactly `also`."""

    low: float
    high: float
    also: int | None = None

    @property
    def words(self) -> str:
        return f"{self.low} to {self.high}" + ("" if self.also is None else f", or {self.also}")

    def allows(self, value: SettingValue) -> bool:
        return isinstance(value, int | float) and (
            self.low <= value <= self.high or value == self.also
        )


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some texts (or of the two booleans)."""

    choices: tuple[SettingValue, ...]

    @property
    def words(self) -> str:
        texts = [str(format_value(choice)) for choice in self.choices]
        return f"one of {', '.join(texts)}" if len(texts) > 1 else f"only {texts[0]}"

    def allows(self, value: SettingValue) -> bool:
        return value in self.choices


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of some texts, each at most once; may be empty."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return "a list of " + ", ".join(self.choices)

    def allows(self, value: SettingValue) -> bool:
        return (
            isinstance(value, tuple)
            and len(set(value)) == len(value)
            and all(item in self.choices for item in value)
        )


@dataclass(frozen=True, slots=True)
class Matching:
    """Texts, or lists of texts, of which each matches a pattern."""

    pattern: re.Pattern[str]
    words: str

    def allows(self, value: SettingValue) -> bool:
        items = value if isinstance(value, tuple) else (value,)
        return all(
            isinstance(item, str) and self.pattern.fullmatch(item) is not None for item in items
        )


class Effect(Enum):
    """Whether Tidelog reads a setting."""

    REAL = "real"
    NONE = "stored, reported, without effect"


class Scope(Enum):
    """The level of a setting: brokers, topics, both under one name, or groups."""

    BROKER = "broker"
    TOPIC = "topic"
    BOTH = "both"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker setting that is a topic setting's default, in a unit `factor` times as large."""

    name: str
    factor: int = 1
    valid: Validator = Anything()
    """The rule of a later synonym; the first one has the topic setting's rule.

    A synonym counts if those before it are unset.
    """
    note: str = ""
    """An addition to the documentation."""

    def in_topic_unit(self, value: SettingValue) -> SettingValue:
        """The broker's value in the topic's unit. Negative means unlimited in every unit."""
        if self.factor == 1 or not isinstance(value, int):
            return value
        return -1 if value < 0 else value * self.factor

    def in_broker_unit(self, value: SettingValue) -> SettingValue:
        """The topic setting's default in the broker's unit: a whole number of such units."""
        return value // self.factor if self.factor > 1 and isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the tables."""

    name: str
    kind: SettingType
    default: SettingValue
    valid: Validator
    doc: str
    _: KW_ONLY
    scope: Scope = Scope.BROKER
    dynamic: bool = False
    """Whether a running broker takes a new value (AlterConfigs on a broker).

    Settings of topics and groups are always dynamic.
    """
    effect: Effect = Effect.REAL
    per_listener: bool = False
    """Whether `listener.name.NAME.` before the name sets it for one listener."""
    per_mechanism: bool = False
    """Whether only `listener.name.NAME.MECHANISM.` before the name sets it."""
    synonyms: tuple[Synonym, ...] = ()
    """Broker settings; the first one that is set is the default of this setting."""
    kafka_default: str | None = None
    """Kafka's default, if ours differs."""

    def parse(self, raw: object) -> SettingValue:
        """The value, if it is allowed. InvalidValue names the allowed values."""
        value = parse_value(self.kind, raw)
        if not self.valid.allows(value):
            raise InvalidValue(f"must be {self.valid.words}")
        return value
