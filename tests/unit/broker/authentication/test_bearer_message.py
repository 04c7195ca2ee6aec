"""The first message of OAUTHBEARER, by the grammar of RFC 7628 and of Kafka."""

from __future__ import annotations

import pytest

from tests.unit.broker.authentication.issuer import bearer
from tidelog.broker.authentication.bearer_message import (
    MESSAGE_BYTES_MAX,
    BearerMessage,
    parse_bearer_message,
)
from tidelog.broker.authentication.identity import Malformed


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (bearer("a.b-c_d~e+f/g=="), BearerMessage("a.b-c_d~e+f/g==", "", {})),
        (bearer("t", name="a=2Cb=3D"), BearerMessage("t", "a,b=", {})),
        (
            bearer("t", host="h", traceId="a=b, c\t"),
            BearerMessage("t", "", {"host": "h", "traceId": "a=b, c\t"}),
        ),
        (b"n,,\x01auth=BEARER   t\x01\x01", BearerMessage("t", "", {})),
        (b"n,,\x01auth=x y\x01auth=bearer t\x01\x01", BearerMessage("t", "", {})),
    ],
)
def test_tokens_names_and_extensions_are_read(message: bytes, expected: BearerMessage) -> None:
    assert parse_bearer_message(message) == expected


FIRST = "Invalid OAUTHBEARER client first message"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", FIRST),
        (b"y,,\x01auth=Bearer t\x01\x01", FIRST),
        (b"n,,\x01auth=Bearer t\x01", FIRST),
        (b"n,a=,\x01auth=Bearer t\x01\x01", FIRST),
        (b"n,a=a=b,\x01auth=Bearer t\x01\x01", FIRST),
        (b"n,,\x01auth=Bearer t\x011a=b\x01\x01", FIRST),
        (b"n,,\x01auth=Bearer t\x01a=\x01\x01", FIRST),
        (b"n,,\x01auth=Bearer t\x01a=\xc3\xa4\x01\x01", FIRST),
        (b"n,,\x01auth=Bearer t\x01\x01x", FIRST),
        (b"n,,\x01\x01", f"{FIRST}: 'auth' not specified"),
        (b"n,,\x01auth=Bearer\x01\x01", f"{FIRST}: invalid 'auth' format"),
        (b"n,,\x01auth=Bearer a b\x01\x01", f"{FIRST}: invalid 'auth' format"),
        (b"n,,\x01auth=Basic t\x01\x01", "Invalid scheme in OAUTHBEARER client first message"),
        (b"n" * (MESSAGE_BYTES_MAX + 1), "exceeds 65536"),
    ],
)
def test_other_messages_are_refused_in_kafkas_words(message: bytes, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_bearer_message(message)
    assert str(refused.value).endswith(why)


def test_a_token_is_not_shown() -> None:
    assert "hidden" not in repr(parse_bearer_message(bearer("hidden")))
