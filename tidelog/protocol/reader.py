"""Compiles the reader of one version of a message.

One function reads the whole message, with nested structures and loops. A single call unpacks
adjacent fixed-size values, with the length or tag count after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.protocol import wire
from tidelog.protocol.fields import Field, WireKind, WireType
from tidelog.protocol.source import FunctionSource, default_expression, smallest

if TYPE_CHECKING:
    from tidelog.protocol.message import Message, Reader, StepReader, Struct


def compile_reader(message_type: type[Message], version: int) -> Reader:
    """The reader of `message_type` in `version`.

    The reader raises ValueError, IndexError or struct.error for malformed input. It raises
    LongMessage for more than SHORT_ELEMENTS_MAX elements.
    """
    reader: Reader = _ReaderCompiler(message_type, version, in_steps=False).compile()
    return reader


def compile_step_reader(message_type: type[Message], version: int) -> StepReader:
    """The reader of messages with up to ELEMENTS_MAX elements.

    The reader is a generator that pauses after about every STEP_ELEMENTS elements.
    """
    reader: StepReader = _ReaderCompiler(message_type, version, in_steps=True).compile()
    return reader


_FIXED_SIZES = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8, "16s": 16}


class _ReaderCompiler:
    """Generates the source of a reader.

    | Local | Meaning |
    |---|---|
    | `b`, `p`, `end` | the frame, the position, the frame's length |
    | `left` | the number of array elements that may still come |
    | `mark` | the value of `left` below which the next array ends the step |
    """

    def __init__(self, message_type: type[Message], version: int, *, in_steps: bool) -> None:
        self._message_type = message_type
        self._version = version
        self._flexible = version in message_type.FLEXIBLE
        self._in_steps = in_steps
        self._out = FunctionSource("def read(b, p, end):")
        self._uuids: list[tuple[str, str]] = []
        for helper in (
            wire.read_uvarint,
            wire.skip_tags,
            wire.uuid_of,
            wire.overrun,
            wire.null,
            wire.bad_marker,
            wire.bad_tag,
            wire.too_many,
            wire.too_long,
            wire.unpack_array,
        ):
            self._out.names[helper.__name__] = helper
        self._out.names["new"] = object.__new__

    def compile(self) -> Any:
        """The reader as a function."""
        elements_max = wire.ELEMENTS_MAX if self._in_steps else wire.SHORT_ELEMENTS_MAX
        self._out.emit(f"left = {elements_max}")
        if self._in_steps:
            self._out.emit(f"mark = {elements_max - wire.STEP_ELEMENTS}")
        message = self._struct(self._message_type)
        self._flush()
        if self._in_steps:
            # Without an array too: this makes the function a generator.
            self._out.emit("if mark < 0: yield")
        self._out.emit(f"return {message}, p")
        kind = "step reader" if self._in_steps else "reader"
        name = self._message_type.__name__
        return self._out.function("read", f"<{kind} of {name} version {self._version}>")

    def _struct(self, type_: type[Struct]) -> str:
        """Read a structure; returns the local that holds it. Leaves a run open."""
        out = self._out
        local = out.fresh("o")
        out.emit(f"{local} = new({out.constant(type_.__name__, type_)})")
        tagged = []
        for field in type_.FIELDS:
            present = self._version in field.versions
            if present and field.tag is None:
                where = f"{type_.__name__}.{field.name}"
                self._value(field.type, f"{local}.{field.name}", self._nullable(field), where)
                continue
            out.emit(f"{local}.{field.name} = {default_expression(out, field)}")
            if present:
                tagged.append(field)
        if self._flexible:
            self._tags(type_, local, tagged)
        return local

    def _nullable(self, field: Field) -> bool:
        return self._version in field.nullable

    def _value(self, type_: WireType, target: str, nullable: bool, where: str) -> None:
        match type_.kind:
            case WireKind.FIXED:
                self._out.run.append((type_.code, target))
            case WireKind.UUID:
                local = self._out.fresh("u")
                self._out.run.append(("16s", local))
                self._uuids.append((target, local))
            case WireKind.STRING | WireKind.BINARY | WireKind.RECORDS:
                self._bytes(type_.kind, target, nullable, where)
            case WireKind.ARRAY:
                assert type_.element is not None
                self._array(type_.element, target, nullable, where)
            case WireKind.STRUCT:
                assert type_.struct is not None
                self._nested(type_.struct, target, nullable, where, null=255)

    def _flush(self) -> None:
        """Emit the call that unpacks the open run."""
        out = self._out
        codes = "".join(code for code, _ in out.run)
        if codes == "B":
            out.emit(f"{out.run[0][1]} = b[p]")
            out.emit("p += 1")
        elif codes:
            targets = ", ".join(target for _, target in out.run)
            comma = "," if len(out.run) == 1 else ""
            out.emit(f"{targets}{comma} = {out.packer(codes, 'unpack_from')}(b, p)")
            out.emit(f"p += {sum(_FIXED_SIZES[code] for code, _ in out.run)}")
        out.run.clear()
        for target, local in self._uuids:
            out.emit(f"{target} = uuid_of({local})")
        self._uuids.clear()

    def _length(self, legacy_code: str) -> str:
        """Read a length prefix into a local; in the flexible encoding it is one more."""
        local = self._out.fresh("n")
        self._out.run.append(("B" if self._flexible else legacy_code, local))
        self._flush()
        if self._flexible:
            self._out.emit(f"if {local} > 127: {local}, p = read_uvarint(b, p - 1)")
        return local

    def _open_if_present(self, length: str, target: str, nullable: bool, where: str) -> None:
        """Handle null and negative lengths, and open the block for other lengths."""
        out = self._out
        absent = f"{target} = None" if nullable else f"null({where!r})"
        if self._flexible:
            out.emit(f"if not {length}: {absent}")
        else:
            out.emit(f"if {length} == -1: {absent}")
            out.emit(f"elif {length} < 0: overrun({where!r}, {length}, end - p)")
        out.emit("else:")
        out.depth += 1
        if self._flexible:
            out.emit(f"{length} -= 1")

    def _bytes(self, kind: WireKind, target: str, nullable: bool, where: str) -> None:
        out = self._out
        length = self._length("h" if kind is WireKind.STRING else "i")
        stop = out.fresh("q")
        self._open_if_present(length, target, nullable, where)
        out.emit(f"{stop} = p + {length}")
        limit = (
            f" or {length} > {wire.STRING_BYTES_MAX}"
            if kind is WireKind.STRING and self._flexible
            else ""
        )
        out.emit(f"if {stop} > end{limit}: overrun({where!r}, {length}, end - p)")
        value = f"str(b[p:{stop}], 'utf-8')" if kind is WireKind.STRING else f"b[p:{stop}]"
        out.emit(f"{target} = {value}")
        out.emit(f"p = {stop}")
        out.depth -= 1

    def _array(self, element: WireType, target: str, nullable: bool, where: str) -> None:
        out = self._out
        length = self._length("i")
        size = smallest(element, self._version, self._flexible)
        assert size > 0, f"{where}: an array of nothing cannot be bounded by the bytes that follow"
        self._open_if_present(length, target, nullable, where)
        out.emit(f"if {length} * {size} > end - p: overrun({where!r}, {length}, end - p)")
        self._count(length)
        if self._in_steps:
            out.emit(f"if left < mark: mark = left - {wire.STEP_ELEMENTS}; yield")
        if element.kind is WireKind.FIXED:
            out.emit(f"{target} = unpack_array(b, p, {element.code!r}, {length})")
            out.emit(f"p += {length} * {size}")
        else:
            values = out.fresh("a")
            out.emit(f"{values} = {target} = []")
            if self._in_steps:
                index = out.fresh("i")
                out.emit(f"for {index} in range({length}):")
                out.emit(f" if not ~{index} & {wire.STEP_ELEMENTS - 1}: yield")
            else:
                out.emit(f"for _ in range({length}):")
            out.depth += 1
            if element.kind is WireKind.STRUCT:
                assert element.struct is not None
                value = self._struct(element.struct)
            else:
                value = out.fresh("v")
                self._value(element, value, False, where)
            self._flush()
            out.emit(f"{values}.append({value})")
            out.depth -= 1
        out.depth -= 1

    @property
    def _refusal(self) -> str:
        return "too_many" if self._in_steps else "too_long"

    def _count(self, elements: str) -> None:
        """Count elements, and refuse too many."""
        self._out.emit(f"left -= {elements}")
        self._out.emit(f"if left < 0: {self._refusal}()")

    def _nested(
        self, type_: type[Struct], target: str, nullable: bool, where: str, null: int
    ) -> None:
        """Read a structure in place.

        A nullable one has a byte before it: 1 if present, or `null` (KIP-893).
        """
        out = self._out
        if not nullable:
            out.emit(f"{target} = {self._struct(type_)}")
            return
        marker = out.fresh("m")
        out.run.append(("B", marker))
        self._flush()
        out.emit(f"if {marker} == {null}: {target} = None")
        out.emit(f"elif {marker} != 1: bad_marker({where!r}, {marker}, {null})")
        out.emit("else:")
        out.depth += 1
        out.emit(f"{target} = {self._struct(type_)}")
        self._flush()
        out.depth -= 1

    def _tags(self, type_: type[Struct], local: str, fields: list[Field]) -> None:
        """Read the section of tagged fields that ends every structure of a flexible version."""
        out = self._out
        count = out.fresh("t")
        out.run.append(("B", count))
        self._flush()
        if not fields:
            out.emit(f"if {count}:")
            out.depth += 1
            out.emit("p, left = skip_tags(b, p - 1, end, left)")
            out.emit(f"if left < 0: {self._refusal}()")
            out.depth -= 1
            return
        tag, size, stop = out.fresh("t"), out.fresh("n"), out.fresh("q")
        out.emit(f"if {count}:")
        out.depth += 1
        out.emit(f"if {count} > 127: {count}, p = read_uvarint(b, p - 1)")
        self._count(count)
        out.emit(f"for _ in range({count}):")
        out.depth += 1
        out.emit(f"{tag}, p = read_uvarint(b, p)")
        out.emit(f"{size}, p = read_uvarint(b, p)")
        out.emit(f"{stop} = p + {size}")
        out.emit(f"if {stop} > end: overrun({type_.__name__!r}, {size}, end - p)")
        for index, field in enumerate(fields):
            where = f"{type_.__name__}.{field.name}"
            out.emit(f"{'elif' if index else 'if'} {tag} == {field.tag}:")
            out.depth += 1
            target, nullable = f"{local}.{field.name}", self._nullable(field)
            if field.type.struct is not None:
                self._nested(field.type.struct, target, nullable, where, null=0)
            else:
                self._value(field.type, target, nullable, where)
            self._flush()
            out.emit(f"if p != {stop}: bad_tag({where!r}, {size})")
            out.depth -= 1
        out.emit(f"else: p = {stop}")
        out.depth -= 2
