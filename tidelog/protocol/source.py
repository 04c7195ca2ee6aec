"""Python source under construction: what the reader and the writer compiler have in common."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from tidelog.protocol.fields import Field, WireKind, WireType


class FunctionSource:
    """Lines of one function, the names that it uses, and the fixed-size values that wait to be
    packed or unpacked by one call."""

    def __init__(self, signature: str) -> None:
        self.lines = [signature]
        self.names: dict[str, Any] = {}
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        """(struct code, target or expression) of values that follow each other on the wire."""
        self._serial = 0

    def emit(self, line: str) -> None:
        """Add one line at the present depth."""
        self.lines.append(" " * self.depth + line)

    def fresh(self, prefix: str) -> str:
        """A local name that is not in use."""
        self._serial += 1
        return f"{prefix}{self._serial}"

    def constant(self, prefix: str, value: object) -> str:
        """A global name for `value`."""
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = value
        return name

    def packer(self, codes: str, method: str) -> str:
        """The global name of the bound `method` of a big-endian Struct."""
        name = f"{method}_{codes.replace('?', 'B_')}"
        self.names[name] = getattr(struct.Struct(f">{codes}"), method)
        return name

    def function(self, name: str, origin: str) -> Any:
        """Compile the lines; `origin` is what tracebacks show as the file."""
        exec(compile("\n".join(self.lines), origin, "exec"), self.names)  # noqa: S102 (our own text)
        return self.names[name]


def smallest(type_: WireType, version: int, flexible: bool) -> int:
    """The fewest bytes that a value takes, by which the length of an array is bounded."""
    match type_.kind:
        case WireKind.FIXED | WireKind.UUID:
            return type_.size
        case WireKind.STRING:
            return 1 if flexible else 2
        case WireKind.BINARY | WireKind.RECORDS | WireKind.ARRAY:
            return 1 if flexible else 4
        case WireKind.STRUCT:
            assert type_.struct is not None
            present = (f for f in type_.struct.FIELDS if version in f.versions and f.tag is None)
            return int(flexible) + sum(
                1
                if version in field.nullable and field.type.kind is WireKind.STRUCT
                else smallest(field.type, version, flexible)
                for field in present
            )


def default_expression(source: FunctionSource, field: Field) -> str:
    """What an absent field is set to."""
    if field.type.kind is WireKind.ARRAY and field.default == ():
        return "[]"
    if field.type.kind is WireKind.STRUCT and field.default is not None:
        return f"{source.constant('new', field.default)}()"
    if isinstance(field.default, UUID):
        return source.constant("uuid", field.default)
    return repr(field.default)
