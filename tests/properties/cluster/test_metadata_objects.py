"""The objects under `cluster/`: every object that can be written is read back, and no other bytes
are accepted."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.cluster.records.bucket_format import encode_cluster_id, is_cluster_id
from tidelog.coordinator.cluster.records.records import (
    RECORD_TYPES,
    MetadataEntry,
    Record,
    decode_entry,
    encode_entry,
)
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Epoch

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def record_strategy(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a record's class, from its annotations; validity is the state's business."""

    def of(annotation: Any) -> st.SearchStrategy[Any]:
        annotation = getattr(annotation, "__supertype__", annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation is int:
            return INTEGERS
        if annotation is float:
            return st.floats(allow_nan=False, allow_infinity=False)
        if annotation is bool:
            return st.booleans()
        if annotation is str:
            return TEXTS
        if annotation is UUID:
            return st.uuids()
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return st.sampled_from(annotation)
        if origin in (types.UnionType, typing.Union):
            return st.one_of([of(each) for each in arguments])
        if annotation is type(None):
            return st.none()
        if origin is tuple:
            return st.lists(of(arguments[0]), max_size=5).map(tuple)
        if origin is Mapping:
            return st.dictionaries(TEXTS, of(arguments[1]), max_size=5)
        if dataclasses.is_dataclass(annotation):
            return record_strategy(annotation)
        raise AssertionError(f"no strategy for {annotation}")

    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{field.name: of(hints[field.name]) for field in dataclasses.fields(kind)}
    )


RECORDS: st.SearchStrategy[Record] = st.one_of(
    [record_strategy(kind) for kind in RECORD_TYPES.values()]
)
ENTRIES = st.builds(
    MetadataEntry,
    sequence=st.integers(0, 2**63 - 1),
    writer_id=st.binary(min_size=16, max_size=16),
    time_ms=INTEGERS,
    author=st.none() | INTEGERS.map(Epoch),
    records=st.lists(RECORDS, max_size=4).map(tuple),
)


@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry: MetadataEntry) -> None:
    data = encode_entry(entry)
    assert decode_entry("k", data) == entry
    assert encode_entry(decode_entry("k", memoryview(data))) == data


@given(ENTRIES, st.data())
def test_damage_never_passes(entry: MetadataEntry, data: st.DataObject) -> None:
    whole = bytearray(encode_entry(entry))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptObject):
        decode_entry("k", whole)


@given(st.binary(max_size=300))
def test_any_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises((CorruptObject, UnsupportedFormat)):
        decode_entry("k", data)


@given(st.uuids())
def test_a_cluster_id_is_one_way_to_write_a_uuid(identity: Any) -> None:
    text = encode_cluster_id(identity)
    assert is_cluster_id(text)
    assert not is_cluster_id(text + "=")
    assert not is_cluster_id(text[:-1])


@given(st.text(max_size=24))
def test_other_texts_are_no_cluster_ids(text: str) -> None:
    assert not is_cluster_id(text) or len(text) == 22
