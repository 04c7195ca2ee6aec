"""Any bytes give a message or MalformedMessage, with memory in proportion to the input."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.protocol.messages import ALL, RICHNESS_MAX, case_name, random_message
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.errors import MalformedMessage, UnknownApi
from tidelog.protocol.headers import decode_request_header
from tidelog.protocol.message import Message

_few = settings(max_examples=max(5, settings.default.max_examples // 10))  # type: ignore[union-attr]
_MUTATIONS_PER_MESSAGE = 40


def _mutated(chance: random.Random, encoded: bytes) -> bytes:
    """A few bytes changed to values that matter, cut out, repeated or added."""
    data = bytearray(encoded)
    for _ in range(chance.randint(1, 4)):
        where = chance.randint(0, len(data))
        match chance.randrange(4):
            case 0 if where < len(data):
                data[where] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 1:
                del data[where : where + chance.choice((1, 2, 4, 8, len(data)))]
            case 2:
                data[where:where] = data[where : where + chance.choice((1, 4, 16))]
            case _:
                data[where:where] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0"))
    return bytes(data)


def _decodes_or_refuses(message_type: type[Message], version: int, data: bytes) -> bool:
    try:
        message = decode(message_type, data, version)
    except MalformedMessage:
        return False
    # Every accepted message can be written again.
    encode(message, version)
    return True


@pytest.mark.parametrize("case", ALL, ids=case_name)
@_few
@given(seed=st.integers(0, 2**32), richness=st.integers(0, RICHNESS_MAX))
def test_damaged_messages(case: tuple[type[Message], int], seed: int, richness: int) -> None:
    message_type, version = case
    encoded = b"".join(encode(random_message(message_type, version, seed, richness), version))
    chance = random.Random(seed)
    for _ in range(_MUTATIONS_PER_MESSAGE):
        _decodes_or_refuses(message_type, version, _mutated(chance, encoded))


@given(data=st.binary(max_size=60), case=st.sampled_from(ALL))
def test_arbitrary_bytes(data: bytes, case: tuple[type[Message], int]) -> None:
    _decodes_or_refuses(*case, data)


@given(data=st.binary(max_size=40))
def test_arbitrary_request_headers(data: bytes) -> None:
    with contextlib.suppress(MalformedMessage, UnknownApi):
        header = decode_request_header(memoryview(data))
        assert 10 <= header.body_position <= len(data)


@pytest.mark.parametrize("case", ALL, ids=case_name)
def test_every_truncation_is_refused(case: tuple[type[Message], int]) -> None:
    message_type, version = case
    encoded = b"".join(encode(random_message(message_type, version, 7, 1), version))
    for size in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            decode(message_type, encoded[:size], version)
    with pytest.raises(MalformedMessage):
        decode(message_type, encoded + b"\0", version)


def test_memory_is_bounded_by_the_input() -> None:
    """The worst that 100 kB of one repeated byte can do to any message is a few objects for every
    few bytes. Memory never follows the length that a prefix announces."""
    size = 100_000
    for message_type, version in ALL:
        for byte in (0x00, 0x01, 0x02, 0x7F, 0xFF):
            data = bytes([byte]) * size
            _decodes_or_refuses(message_type, version, b"")  # so that its reader is compiled
            tracemalloc.start()
            _decodes_or_refuses(message_type, version, data)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 100 * size, f"{message_type.__name__} {version}: {peak} bytes"
