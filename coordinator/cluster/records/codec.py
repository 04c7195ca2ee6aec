"""Frozen dataclasses to JSON values and back, driven by their annotations."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID

Json: TypeAlias = Any
"""A value that the json module reads and writes."""
T = TypeVar("T")

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1


class Mismatch(ValueError):
    """A JSON value does not have the form of its annotation; the message names the place."""


def to_json(value: object) -> Json:
    """The JSON value of a dataclass, or of any value that its fields may hold.

    A UUID becomes its usual text, a tuple a list, a mapping or a dataclass an object.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        names = _field_names(cast(Hashable, type(value)))
        return {name: to_json(getattr(value, name)) for name in names}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(kind: type[T], value: Json) -> T:
    """The `kind` that `value` describes. Raises Mismatch.

    A field with a default may be missing (entries older than the field). An unknown field is a
    mismatch, since a writer that adds one raises the format version.
    """
    return cast(T, _decoder(cast(Hashable, kind))(value))


@cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cast(type, kind)))


@cache
def _decoder(kind: Any) -> Callable[[Json], Any]:
    """The function that turns a JSON value into `kind`; made once for each annotation."""
    kind = getattr(kind, "__supertype__", kind)  # a NewType decodes like its base
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_decoder(_decoder(arguments[0]))
    if origin is Mapping and arguments[0] is str:
        return _mapping_decoder(_decoder(arguments[1]))
    if origin in (types.UnionType, typing.Union) and type(None) in arguments:
        (some,) = (each for each in arguments if each is not type(None))
        return _optional_decoder(_decoder(some))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum_decoder(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(cast(type, kind))
    raise TypeError(f"{kind} has no JSON form")


def _integer(value: Json) -> int:
    if type(value) is not int:
        raise Mismatch(f"{_shown(value)} is not an integer")
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise Mismatch(f"{value} does not fit into 64 bits")
    return value


def _real(value: Json) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise Mismatch(f"{_shown(value)} is not a finite number with a fraction")
    return value


def _boolean(value: Json) -> bool:
    if type(value) is not bool:
        raise Mismatch(f"{_shown(value)} is neither true nor false")
    return value


def _text(value: Json) -> str:
    if type(value) is not str:
        raise Mismatch(f"{_shown(value)} is not a string")
    return value


def _uuid(value: Json) -> UUID:
    try:
        found = UUID(_text(value))
    except ValueError as error:
        raise Mismatch(f"{_shown(value)} is not a UUID") from error
    if str(found) != value:
        raise Mismatch(f"{_shown(value)} is not a UUID in its usual form")
    return found


_PLAIN: Mapping[Any, Callable[[Json], Any]] = {
    int: _integer,
    float: _real,
    bool: _boolean,
    str: _text,
    UUID: _uuid,
}


def _tuple_decoder(item: Callable[[Json], Any]) -> Callable[[Json], tuple[Any, ...]]:
    def decode(value: Json) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Mismatch(f"{_shown(value)} is not an array")
        return tuple([item(each) for each in value])

    return decode


def _mapping_decoder(item: Callable[[Json], Any]) -> Callable[[Json], dict[str, Any]]:
    def decode(value: Json) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(f"{_shown(value)} is not an object")
        return {key: item(each) for key, each in value.items()}

    return decode


def _optional_decoder(some: Callable[[Json], Any]) -> Callable[[Json], Any]:
    return lambda value: None if value is None else some(value)


def _enum_decoder(kind: type[enum.Enum]) -> Callable[[Json], enum.Enum]:
    def decode(value: Json) -> enum.Enum:
        try:
            return kind(value)
        except ValueError as error:
            raise Mismatch(f"{_shown(value)} is no {kind.__name__}") from error

    return decode


def _dataclass_decoder(kind: type) -> Callable[[Json], Any]:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(kind)}
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def decode(value: Json) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"{_shown(value)} is not an object")
        if missing := required - value.keys():
            raise Mismatch(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
        if unknown := value.keys() - fields.keys():
            raise Mismatch(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
        found = {}
        for name, each in value.items():
            try:
                found[name] = fields[name](each)
            except Mismatch as error:
                raise Mismatch(f"{kind.__name__}.{name}: {error}") from error
        return kind(**found)

    return decode


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
