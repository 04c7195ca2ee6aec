"""Compiles the writer of one version of a message.

As in the reader, one function writes the whole message, and a single call packs adjacent fixed-size
values. Records are not copied: the current buffer and the records join the list of finished
buffers, and a new buffer begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.protocol import wire
from tidelog.protocol.fields import Field, WireKind, WireType
from tidelog.protocol.source import FunctionSource

if TYPE_CHECKING:
    from tidelog.protocol.message import Message, StepWriter, Struct, Writer


def compile_writer(message_type: type[Message], version: int) -> Writer:
    """The writer of `message_type` in `version`.

    The writer raises Python's own errors for unfit values. It raises LongMessage for more than
    SHORT_ELEMENTS_MAX elements.
    """
    writer: Writer = _WriterCompiler(message_type, version, in_steps=False).compile()
    return writer


def compile_step_writer(message_type: type[Message], version: int) -> StepWriter:
    """The writer of messages of any length.

    The writer is a generator that pauses after about every STEP_ELEMENTS elements.
    """
    writer: StepWriter = _WriterCompiler(message_type, version, in_steps=True).compile()
    return writer


_COUNTED_DEPTH = 2
"""The depth to which elements are counted: topics and their partitions. Deeper counts would cost
each fetch more than they tell.
"""


class _WriterCompiler:
    """Generates the source of a writer.

    | Local | Meaning |
    |---|---|
    | `w` | the current bytearray |
    | `iov` | the list of finished buffers |
    | `left` | the number of elements that may still come; of the step, if in steps |
    """

    def __init__(self, message_type: type[Message], version: int, *, in_steps: bool) -> None:
        self._message_type = message_type
        self._version = version
        self._flexible = version in message_type.FLEXIBLE
        self._in_steps = in_steps
        self._arrays = 0
        """The number of arrays around the current value."""
        self._out = FunctionSource("def write(o0, w, iov):")
        for helper in (wire.uvarint, wire.long_string, wire.null, wire.pack_array, wire.too_long):
            self._out.names[helper.__name__] = helper

    def compile(self) -> Any:
        """The writer as a function."""
        elements_max = wire.STEP_ELEMENTS if self._in_steps else wire.SHORT_ELEMENTS_MAX
        self._out.emit(f"left = {elements_max}")
        self._struct(self._message_type, "o0")
        self._flush()
        if self._in_steps:
            # Without an array too: this makes the function a generator.
            self._out.emit("if left < 0: yield")
        self._out.emit("return w")
        kind = "step writer" if self._in_steps else "writer"
        name = self._message_type.__name__
        return self._out.function("write", f"<{kind} of {name} version {self._version}>")

    def _struct(self, type_: type[Struct], local: str) -> None:
        """Write the structure in a local. Leaves a run open."""
        present = [field for field in type_.FIELDS if self._version in field.versions]
        for field in present:
            if field.tag is None:
                where = f"{type_.__name__}.{field.name}"
                self._value(field.type, f"{local}.{field.name}", self._nullable(field), where)
        if self._flexible:
            self._tags(type_, local, [field for field in present if field.tag is not None])

    def _nullable(self, field: Field) -> bool:
        return self._version in field.nullable

    def _value(self, type_: WireType, value: str, nullable: bool, where: str) -> None:
        match type_.kind:
            case WireKind.FIXED:
                self._out.run.append((type_.code, value))
            case WireKind.UUID:
                self._out.run.append(("16s", f"{value}.bytes"))
            case WireKind.STRING | WireKind.BINARY:
                self._bytes(type_.kind, value, nullable)
            case WireKind.RECORDS:
                self._records(value, nullable)
            case WireKind.ARRAY:
                assert type_.element is not None
                self._array(type_.element, value, nullable, where)
            case WireKind.STRUCT:
                assert type_.struct is not None
                self._nested(type_.struct, value, nullable, null=255)

    def _flush(self) -> None:
        """Emit the call that packs the open run."""
        out = self._out
        if not out.run:
            return
        codes = "".join(code for code, _ in out.run)
        if codes == "B":
            out.emit(f"w.append({out.run[0][1]})")
        else:
            values = ", ".join(value for _, value in out.run)
            out.emit(f"w += {out.packer(codes, 'pack')}({values})")
        out.run.clear()

    def _length(self, local: str, kind: WireKind) -> None:
        """Write the length in `local` (-1: null) as the prefix of a value."""
        out = self._out
        if not self._flexible:
            out.run.append(("h" if kind is WireKind.STRING else "i", local))
            self._flush()
            return
        self._flush()
        encode = "long_string" if kind is WireKind.STRING else "uvarint"
        out.emit(f"if {local} < 127: w.append({local} + 1)")
        out.emit(f"else: w += {encode}({local} + 1)")

    def _bytes(self, kind: WireKind, value: str, nullable: bool) -> None:
        out = self._out
        local, length = out.fresh("x"), out.fresh("n")
        encode = ".encode()" if kind is WireKind.STRING else ""
        if nullable:
            out.emit(f"{local} = {value}")
            out.emit(f"if {local} is None: {local} = b''; {length} = -1")
            out.emit(f"else: {local} = {local}{encode}; {length} = len({local})")
        else:
            out.emit(f"{local} = {value}{encode}; {length} = len({local})")
        self._length(length, kind)
        out.emit(f"w += {local}")

    def _records(self, value: str, nullable: bool) -> None:
        out = self._out
        local, length = out.fresh("x"), out.fresh("n")
        out.emit(f"{local} = {value}")
        out.emit(f"if type({local}) is list: {length} = sum(map(len, {local}))")
        if nullable:
            out.emit(f"elif {local} is None: {local} = b''; {length} = -1")
        out.emit(f"else: {length} = len({local})")
        self._length(length, WireKind.RECORDS)
        out.emit(f"if type({local}) is list: iov.append(w); iov += {local}; w = bytearray()")
        out.emit(f"elif {length} > {wire.COPIED_BYTES_MAX}:")
        out.emit(f" iov.append(w); iov.append({local}); w = bytearray()")
        out.emit(f"else: w += {local}")

    def _array(self, element: WireType, value: str, nullable: bool, where: str) -> None:
        out = self._out
        local, length = out.fresh("x"), out.fresh("n")
        out.emit(f"{local} = {value}")
        if nullable:
            out.emit(f"if {local} is None: {local} = (); {length} = -1")
            out.emit(f"else: {length} = len({local})")
        else:
            out.emit(f"{length} = len({local})")
        self._length(length, WireKind.ARRAY)
        if element.kind is WireKind.FIXED:
            out.emit(f"w += pack_array({element.code!r}, {local})")
            return
        if not self._in_steps and self._arrays < _COUNTED_DEPTH:
            out.emit(f"left -= {length}")
            out.emit("if left < 0: too_long()")
        item = out.fresh("o")
        out.emit(f"for {item} in {local}:")
        out.depth += 1
        self._arrays += 1
        if self._in_steps:
            out.emit("left -= 1")
            out.emit(f"if not left: left = {wire.STEP_ELEMENTS}; yield")
        self._value(element, item, False, where)
        self._flush()
        self._arrays -= 1
        out.depth -= 1

    def _nested(self, type_: type[Struct], value: str, nullable: bool, null: int) -> None:
        """Write a structure in place; the byte `null` marks an absent one."""
        out = self._out
        local = out.fresh("o")
        if not nullable:
            out.emit(f"{local} = {value}")
            self._struct(type_, local)
            return
        self._flush()
        out.emit(f"{local} = {value}")
        out.emit(f"if {local} is None: w.append({null})")
        out.emit("else:")
        out.depth += 1
        out.run.append(("B", "1"))
        self._struct(type_, local)
        self._flush()
        out.depth -= 1

    def _tags(self, type_: type[Struct], local: str, fields: list[Field]) -> None:
        """Write the section of tagged fields, without those that have their default."""
        out = self._out
        if not fields:
            out.run.append(("B", "0"))
            return
        self._flush()
        conditions = [
            _differs(field, f"{local}.{field.name}", self._nullable(field)) for field in fields
        ]
        out.emit(f"if {' or '.join(conditions)}:")
        out.depth += 1
        section, outer = out.fresh("s"), out.fresh("w")
        out.emit(f"{outer} = w; {section} = []")
        for field, condition in sorted(zip(fields, conditions, strict=True), key=_tag_of):
            where = f"{type_.__name__}.{field.name}"
            assert field.tag is not None
            tag = wire.uvarint(field.tag)
            out.emit(f"if {condition}:")
            out.depth += 1
            value, nullable = f"{local}.{field.name}", self._nullable(field)
            if field.type.kind is WireKind.FIXED:
                size = wire.uvarint(field.type.size)
                packed = f"{out.packer(field.type.code, 'pack')}({value})"
                out.emit(f"{section}.append({tag + size!r} + {packed})")
            else:
                out.emit("w = bytearray()")
                if field.type.struct is not None:
                    self._nested(field.type.struct, value, nullable, null=0)
                else:
                    self._value(field.type, value, nullable, where)
                self._flush()
                out.emit(f"{section}.append({tag!r} + uvarint(len(w)) + w)")
            out.depth -= 1
        out.emit(f"w = {outer}; w += uvarint(len({section})); w += b''.join({section})")
        out.depth -= 1
        out.emit("else: w.append(0)")


def _tag_of(item: tuple[Field, str]) -> int:
    tag = item[0].tag
    assert tag is not None
    return tag


def _differs(field: Field, value: str, nullable: bool) -> str:
    """The condition for a tagged field to be on the wire."""
    if field.type.kind is WireKind.STRUCT and nullable:
        # Kafka's default is then an empty structure, not null.
        return "True"
    if field.default is None:
        return f"{value} is not None"
    if field.type.kind is WireKind.ARRAY:
        return f"{value}"
    if field.type.kind is WireKind.UUID:
        return f"{value}.int"
    return f"{value} != {field.default!r}"
