"""The client's first message of OAUTHBEARER (RFC 7628), by Kafka's grammar. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.broker.authentication.identity import Malformed

MESSAGE_BYTES_MAX: Final = 64 * 1024
"""The client's first message. A token with many groups has some KiB."""
_SEPARATOR: Final = "\x01"
_INVALID: Final = "Invalid OAUTHBEARER client first message"
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<name>(?:[\x01-+\--<>-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[!-~ \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)", re.ASCII)


class BearerMessage(NamedTuple):
    """A bearer token, and the other fields of the message."""

    token: str
    authorization_id: str
    """The name that the client wants to act for; empty: that of the token."""
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        """Without the token."""
        return f"BearerMessage({self.authorization_id!r})"


def parse_bearer_message(message: bytes) -> BearerMessage:
    """The parts of the message. Raises Malformed, which repeats no part of it."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise Malformed(f"a message of {len(message)} bytes exceeds {MESSAGE_BYTES_MAX}")
    # Letters beyond ASCII have no place in the grammar: each of their bytes fails to match.
    first = _FIRST.fullmatch(message.decode("latin-1"))
    if first is None:
        raise Malformed(_INVALID)
    # As in Kafka, the last one of a name counts.
    pairs = dict([pair.split("=", 1) for pair in first["pairs"].split(_SEPARATOR) if pair])
    if "auth" not in pairs:
        raise Malformed(f"{_INVALID}: 'auth' not specified")
    auth = _AUTH.fullmatch(pairs.pop("auth"))
    if auth is None:
        raise Malformed(f"{_INVALID}: invalid 'auth' format")
    if auth["scheme"].lower() != "bearer":
        raise Malformed("Invalid scheme in OAUTHBEARER client first message")
    name = (first["name"] or "").replace("=2C", ",").replace("=3D", "=")
    return BearerMessage(auth["token"], name, pairs)
