"""Builds Python source, for the reader and the writer compiler."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from tidelog.protocol.fields import Field, WireKind, WireType


class FunctionSource:
    """One function's lines and global names, and its open run.

    A run is a sequence of fixed-size values that one call packs or unpacks.
    """

    def __init__(self, signature: str) -> None:
        self.lines = [signature]
        self.names: dict[str, Any] = {}
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        """(struct code, target or expression) of adjacent values on the wire."""
        self._serial = 0

    def emit(self, line: str) -> None:
        """Add one line at the current depth."""
        self.lines.append(" " * self.depth + line)

    def fresh(self, prefix: str) -> str:
        """An unused local name."""
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
        """Compile the lines; tracebacks show `origin` as the file."""
        exec(compile("\n".join(self.lines), origin, "exec"), self.names)  # noqa: S102 (our own text)
        return self.names[name]


def smallest(type_: WireType, version: int, flexible: bool) -> int:
    """The minimum size of a value, which bounds the length of an array."""
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
    """The expression for an absent field's value."""
    if field.type.kind is WireKind.ARRAY and field.default == ():
        return "[]"
    if field.type.kind is WireKind.STRUCT and field.default is not None:
        return f"{source.constant('new', field.default)}()"
    if isinstance(field.default, UUID):
        return source.constant("uuid", field.default)
    return repr(field.default)
