"""The notation of message schemas.

A message is a class whose attributes are calls of these functions, in wire order:

    class PartitionProduceData(Struct):
        index: int = int32()
        records: Buffer | None = records(nullable="0+")

    class ProduceRequest(Request["ProduceResponse"], api_key=0, versions=(0, 13), flexible=9):
        transactional_id: str | None = string("3+", nullable="3+", default=None)
        acks: int = int16()
        topic_data: list[TopicProduceData] = array(TopicProduceData)

| Argument | Meaning |
|---|---|
| the first one | the versions that carry the field ("3+", "0-12", "4"; default: all) |
| `nullable` | the versions in which the field may be None |
| `tag` | the number of a tagged field |

In other versions the field has its default. Each function declares the attribute's type as its
return type, for type checkers. It returns a `Field`, which the metaclass of `Struct` collects.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from uuid import UUID

from tidelog.protocol.wire import NULL_UUID, Buffer

if TYPE_CHECKING:
    from tidelog.protocol.message import Struct

T = TypeVar("T")
S = TypeVar("S", bound="Struct")

VERSION_MAX = 32767
OWN_TAGS_FROM = 10_000
"""The first tag of Tidelog's own fields in Kafka's messages. Foreign decoders skip them."""


class WireKind(enum.Enum):
    """The encoding of a value on the wire."""

    FIXED = enum.auto()
    UUID = enum.auto()
    STRING = enum.auto()
    BINARY = enum.auto()
    RECORDS = enum.auto()
    ARRAY = enum.auto()
    STRUCT = enum.auto()


@dataclass(frozen=True, slots=True)
class WireType:
    """A kind with its parameter.

    FIXED has a struct code, ARRAY an element, STRUCT a class.
    """

    kind: WireKind
    code: str = ""
    size: int = 0
    element: WireType | None = None
    struct: type[Struct] | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure. The metaclass sets `name`."""

    type: WireType
    versions: range
    nullable: range
    default: object
    tag: int | None = None
    name: str = field(default="")


def version_range(text: str) -> range:
    """The versions that "3+", "0-12", "4" or "none" names."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), VERSION_MAX + 1)
    lowest, _, highest = text.partition("-")
    return range(int(lowest), int(highest or lowest) + 1)


def _field(
    type_: WireType, versions: str, nullable: str, default: object, tag: int | None = None
) -> Any:
    return Field(type_, version_range(versions), version_range(nullable), default, tag)


def boolean(versions: str = "0+", *, default: bool = False, tag: int | None = None) -> bool:
    return cast(bool, _field(WireType(WireKind.FIXED, "?", 1), versions, "none", default, tag))


def int8(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    """A signed number of one byte."""
    return cast(int, _field(WireType(WireKind.FIXED, "b", 1), versions, "none", default, tag))


def int16(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    """A signed number of two bytes."""
    return cast(int, _field(WireType(WireKind.FIXED, "h", 2), versions, "none", default, tag))


def uint16(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    """An unsigned number of two bytes."""
    return cast(int, _field(WireType(WireKind.FIXED, "H", 2), versions, "none", default, tag))


def int32(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    """A signed number of four bytes."""
    return cast(int, _field(WireType(WireKind.FIXED, "i", 4), versions, "none", default, tag))


def int64(versions: str = "0+", *, default: int = 0, tag: int | None = None) -> int:
    """A signed number of eight bytes."""
    return cast(int, _field(WireType(WireKind.FIXED, "q", 8), versions, "none", default, tag))


def float64(versions: str = "0+", *, default: float = 0.0, tag: int | None = None) -> float:
    """A number of eight bytes with a fraction."""
    return cast(float, _field(WireType(WireKind.FIXED, "d", 8), versions, "none", default, tag))


def uuid(versions: str = "0+", *, default: UUID = NULL_UUID, tag: int | None = None) -> UUID:
    """Sixteen bytes; `NULL_UUID` means none."""
    return cast(UUID, _field(WireType(WireKind.UUID, size=16), versions, "none", default, tag))


@overload
def string(versions: str = "0+", *, default: str = "", tag: int | None = None) -> str: ...
@overload
def string(
    versions: str = "0+", *, nullable: str, default: str | None = "", tag: int | None = None
) -> str | None: ...
def string(
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: str | None = "",
    tag: int | None = None,
) -> str | None:
    """UTF-8 text of at most 32767 bytes."""
    return cast(str, _field(WireType(WireKind.STRING), versions, nullable, default, tag))


@overload
def binary(versions: str = "0+", *, default: bytes = b"") -> Buffer: ...
@overload
def binary(
    versions: str = "0+", *, nullable: str, default: bytes | None = b""
) -> Buffer | None: ...
def binary(
    versions: str = "0+", *, nullable: str = "none", default: bytes | None = b""
) -> Buffer | None:
    """Bytes. Decoding gives a view into the frame."""
    return cast(bytes, _field(WireType(WireKind.BINARY), versions, nullable, default))


def records(versions: str = "0+", *, nullable: str) -> Buffer | None:
    """Record batches. Decoding gives a view into the frame.

    Encoding takes one buffer or a list of buffers, without copies.
    """
    return cast(bytes, _field(WireType(WireKind.RECORDS), versions, nullable, None))


@overload
def array(
    element: Callable[..., T], versions: str = "0+", *, tag: int | None = None
) -> list[T]: ...
@overload
def array(
    element: Callable[..., T],
    versions: str = "0+",
    *,
    nullable: str,
    default: tuple[()] | None = (),
    tag: int | None = None,
) -> list[T] | None: ...
def array(
    element: Callable[..., T],
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: tuple[()] | None = (),
    tag: int | None = None,
) -> list[T] | None:
    """A list of structures (`array(Topic)`) or of plain values (`array(int32)`)."""
    if isinstance(element, type):
        inner = WireType(WireKind.STRUCT, struct=cast("type[Struct]", element))
    else:
        inner = cast(Field, element()).type
    return cast(
        list[T], _field(WireType(WireKind.ARRAY, element=inner), versions, nullable, default, tag)
    )


@overload
def struct(type_: type[S], versions: str = "0+") -> S: ...
@overload
def struct(type_: type[S], versions: str = "0+", *, nullable: str) -> S | None: ...
@overload
def struct(
    type_: type[S], versions: str = "0+", *, nullable: str = "none", tag: int
) -> S | None: ...
def struct(
    type_: type[S], versions: str = "0+", *, nullable: str = "none", tag: int | None = None
) -> S | None:
    """A structure in place.

    A nullable one is None by default. A tagged one is None if it is not on the wire, which is how
    Kafka sends its default. A nullable and tagged one is always on the wire, as null for None.
    """
    optional = nullable != "none" or tag is not None
    default = None if optional else type_
    return cast(
        S, _field(WireType(WireKind.STRUCT, struct=type_), versions, nullable, default, tag)
    )
