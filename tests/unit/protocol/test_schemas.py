"""Every field of the schemas agrees with kio's, which are generated from Kafka's own."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, get_type_hints

import pytest
from kio.serial._introspect import is_optional
from kio.static.primitive import i32Timedelta

from tests.properties.protocol.messages import ALL, case_name
from tests.properties.protocol.oracles import (
    Unsupported,
    kafkas_fields,
    kio_fields,
    kio_struct,
    kio_type_of,
)
from tidelog.protocol.fields import Field, WireKind
from tidelog.protocol.message import Message, Struct

_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "error_code": "h",
    "uint16": "H",
    "int32": "i",
    "timedelta_i32": "i",
    "int64": "q",
    "float64": "d",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
_KINDS = {
    "string": WireKind.STRING,
    "bytes": WireKind.BINARY,
    "records": WireKind.RECORDS,
    "uuid": WireKind.UUID,
    None: WireKind.STRUCT,
}


@pytest.mark.parametrize("case", ALL, ids=case_name)
def test_fields_agree_with_kafkas(case: tuple[type[Message], int]) -> None:
    message_type, version = case
    try:
        theirs = kio_type_of(message_type, version)
    except Unsupported:
        assert message_type.API_KEY == 0
        assert version < 3
        return
    assert (version in message_type.FLEXIBLE) == theirs.__flexible__
    assert theirs.__api_key__ == message_type.API_KEY
    _compare(message_type, version, theirs)


def _compare(ours: type[Struct], version: int, theirs: Any) -> None:
    their_fields = kio_fields(theirs)
    present = kafkas_fields(ours, version)
    untagged = [field.name for field in present if field.tag is None]
    assert untagged == [name for name, f in their_fields.items() if "tag" not in f.metadata]
    for field in present:
        their_field = their_fields[field.name]
        assert field.tag == their_field.metadata.get("tag"), field.name
        _compare_field(field, version, their_field)


def _compare_field(field: Field, version: int, theirs: Any) -> None:
    inner = field.type.element or field.type
    kafka_type = theirs.metadata.get("kafka_type")
    if inner.kind is WireKind.FIXED:
        assert inner.code == _CODES[kafka_type], field.name
    else:
        assert inner.kind is _KINDS[kafka_type], field.name
    if inner.struct is not None:
        _compare(inner.struct, version, kio_struct(theirs.type))
    nulls_of_kio = kafka_type in ("uuid", "datetime_i64")
    if field.tag is None and not nulls_of_kio:
        assert (version in field.nullable) == is_optional(theirs), field.name
    if inner.kind is not WireKind.STRUCT and not nulls_of_kio:
        assert field.default == _default(field, theirs), field.name


def _default(field: Field, theirs: Any) -> object:
    """kio's default. If Kafka's schema names none, the default is zero, empty or, for records,
    null."""
    if theirs.default is dataclasses.MISSING:
        return {
            WireKind.FIXED: 0,
            WireKind.STRING: "",
            WireKind.BINARY: b"",
            WireKind.ARRAY: (),
        }.get(field.type.kind)
    if isinstance(theirs.default, i32Timedelta | datetime.timedelta):
        return theirs.default // datetime.timedelta(milliseconds=1)
    return theirs.default


def test_annotations_agree_with_the_fields() -> None:
    """Type checkers use the annotations for handlers, and the codec uses the fields."""
    python_types = {"?": bool, "b": int, "h": int, "H": int, "i": int, "q": int, "d": float}
    seen = 0
    for type_ in _all_structs():
        hints = get_type_hints(type_)
        for field in type_.FIELDS:
            annotation = str(hints[field.name])
            optional = len(field.nullable) > 0 or (
                field.tag is not None and field.type.kind is WireKind.STRUCT
            )
            assert ("None" in annotation) == optional, f"{type_.__name__}.{field.name}"
            assert ("list[" in annotation) == (
                field.type.kind is WireKind.ARRAY or annotation.count("memoryview") == 2
            )
            if field.type.kind is WireKind.FIXED:
                assert hints[field.name] is python_types[field.type.code]
            seen += 1
    assert seen > 500


def _all_structs() -> list[type[Struct]]:
    found: dict[type[Struct], None] = {}

    def visit(type_: type[Struct]) -> None:
        found[type_] = None
        for field in type_.FIELDS:
            struct = (field.type.element or field.type).struct
            if struct is not None:
                visit(struct)

    for message_type, _ in ALL:
        visit(message_type)
    return list(found)
