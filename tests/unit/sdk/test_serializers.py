"""Keys and values to bytes and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.serialization import StringSerializer

from tidelog.errors import InvalidConfiguration
from tidelog.sdk.serializers import (
    ArrowDeserializer,
    ArrowSerializer,
    NotSerializable,
    deserializer_of,
    from_json,
    serializer_of,
    to_bytes,
    to_json,
)

SCHEMA = pa.schema([("tail", pa.string()), ("miles", pa.int32())])


@pytest.mark.parametrize(
    ("given", "sent"),
    [(None, None), (b"a", b"a"), ("ä", "ä".encode()), (bytearray(b"b"), b"b"), (b"", b"")],
)
def test_bytes_and_text_are_sent_as_they_are(given: Any, sent: bytes | None) -> None:
    assert to_bytes(given) == sent


def test_other_values_are_refused_with_the_remedy() -> None:
    with pytest.raises(NotSerializable, match="value_serializer"):
        to_bytes({"a": 1})


def test_json_comes_back_and_none_is_a_tombstone() -> None:
    value = {"tail": "N14228", "é": [1, 2.5, None, True]}
    assert from_json(to_json(value) or b"") == value
    assert to_json(None) is None
    with pytest.raises(NotSerializable, match="no JSON"):
        to_json({1, 2})
    with pytest.raises(NotSerializable):
        to_json(float("nan"))


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({"tail": "N1", "miles": 3}, [{"tail": "N1", "miles": 3}]),
        (
            [{"tail": "N1"}, {"miles": 4}],
            [{"tail": "N1", "miles": None}, {"tail": None, "miles": 4}],
        ),
        (
            pa.RecordBatch.from_pylist([{"tail": "N1", "miles": 5}], schema=SCHEMA),
            [{"tail": "N1", "miles": 5}],
        ),
    ],
)
def test_arrow_rows_come_back(given: Any, rows: list[dict[str, Any]]) -> None:
    sent = ArrowSerializer(SCHEMA)(given)
    assert sent is not None
    assert ArrowDeserializer(SCHEMA)(sent).to_pylist() == rows


@pytest.mark.parametrize(
    "given",
    [
        {"tail": 3},
        7,
        pa.RecordBatch.from_pylist([{"other": 1}]),
    ],
)
def test_rows_of_another_schema_are_refused(given: Any) -> None:
    with pytest.raises(NotSerializable):
        ArrowSerializer(SCHEMA)(given)


def test_serializers_are_named_or_called() -> None:
    assert serializer_of("value_serializer", "json") is to_json
    assert deserializer_of("value_deserializer", "json") is from_json
    of_confluent = StringSerializer("utf_8")
    assert serializer_of("key_serializer", of_confluent) is of_confluent
    with pytest.raises(InvalidConfiguration, match=r"value_serializer.*bytes, string, json"):
        serializer_of("value_serializer", "avro")
    with pytest.raises(InvalidConfiguration, match="key_deserializer"):
        deserializer_of("key_deserializer", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("serialize", [to_bytes, to_json])
def test_text_that_utf_8_cannot_write_is_refused(serialize: Any) -> None:
    """As JSON's escapes, or the names of files, may give half of a character."""
    with pytest.raises(NotSerializable, match="surrogates"):
        serialize("half \ud83d")
