"""Messages of every API and version pass through our codec and through two others unchanged."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.protocol.messages import ALL, RICHNESS_MAX, case_name, random_message
from tests.properties.protocol.oracles import (
    Unsupported,
    kafka_python_reads,
    kafka_python_repeats,
    kio_reads,
    same_values,
    through_kio,
)
from tidelog.protocol.codec import decode, decode_in_steps, encode, encode_in_steps
from tidelog.protocol.message import Message
from tidelog.protocol.schemas.transactions import (
    AddPartitionsToTxnResponse,
    WriteTxnMarkersRequest,
)

T = TypeVar("T")

# One case is one version of one message, and there are hundreds.
_few = settings(max_examples=max(5, settings.default.max_examples // 10))  # type: ignore[union-attr]
_seeds = st.integers(0, 2**32)
_richness = st.integers(0, RICHNESS_MAX)


def _encoded(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version))


@pytest.mark.parametrize("case", ALL, ids=case_name)
@_few
@given(seed=_seeds, richness=_richness)
def test_ours_and_the_others_agree(
    case: tuple[type[Message], int], seed: int, richness: int
) -> None:
    message_type, version = case
    message = random_message(message_type, version, seed, richness, own=False)
    encoded = _encoded(message, version)
    assert decode(message_type, encoded, version) == message

    judges = 0
    try:
        assert through_kio(message, version) == encoded
        assert kio_reads(message_type, version, encoded) == message
        judges += 1
    except Unsupported:
        pass
    try:
        assert kafka_python_repeats(message_type, version, encoded) == encoded
        assert same_values(message, kafka_python_reads(message_type, version, encoded), version)
        judges += 1
    except Unsupported:
        pass
    assert judges > 0


_WITH_OWN_FIELDS: list[tuple[type[Message], int]] = [
    (WriteTxnMarkersRequest, 2),
    (AddPartitionsToTxnResponse, 4),
    (AddPartitionsToTxnResponse, 5),
]


@pytest.mark.parametrize("case", _WITH_OWN_FIELDS, ids=case_name)
@_few
@given(seed=_seeds)
def test_a_foreign_decoder_skips_our_own_fields(case: tuple[type[Message], int], seed: int) -> None:
    message_type, version = case
    message = random_message(message_type, version, seed, 3)
    read = kafka_python_reads(message_type, version, _encoded(message, version))
    assert same_values(message, read, version)


@pytest.mark.parametrize("case", ALL, ids=case_name)
@_few
@given(seed=_seeds, richness=_richness)
def test_in_steps_messages_are_the_same(
    case: tuple[type[Message], int], seed: int, richness: int
) -> None:
    message_type, version = case
    message = random_message(message_type, version, seed, richness)
    encoded = _encoded(message, version)
    in_steps = _returned(encode_in_steps(message, version, bytearray()))
    assert b"".join(in_steps) == encoded
    view = memoryview(encoded)
    assert _returned(decode_in_steps(message_type, view, version, 0)) == message


def _returned(steps: Generator[None, None, T]) -> T:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
