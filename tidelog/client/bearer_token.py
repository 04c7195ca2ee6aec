"""The token by which a client authenticates with OAUTHBEARER: given, or read from a file."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tidelog.errors import InvalidConfiguration

TOKEN: Final = "sasl.oauthbearer.token"  # noqa: S105
"""The property of a token itself. Tidelog's own."""
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105
"""The property of a file with a token, which may change: file:///PATH."""
TOKEN_BYTES_MAX: Final = 64 * 1024
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")

GiveToken = Callable[[], str]
"""Gives the token for one authentication. Raises InvalidConfiguration."""


def given_token(token: str) -> GiveToken:
    """The same token each time. Raises InvalidConfiguration, which does not repeat it."""
    checked = _checked(TOKEN, token)
    return lambda: checked


def token_file(setting: str, url: str) -> GiveToken:
    """The token that lies in a file at the time. Raises InvalidConfiguration for other URLs."""
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidConfiguration(
            f"{setting} must name a file as file:///PATH; another program may renew the token"
        )
    path = Path(unquote(parts.path))

    def read() -> str:
        try:
            with path.open("rb") as file:
                data = file.read(TOKEN_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidConfiguration(
                f"{setting}: {path} cannot be read: {error.strerror}"
            ) from None
        return _checked(f"{setting}: {path}", data.decode("latin-1"))

    return read


def bearer_message(token: str) -> str:
    """The first message of OAUTHBEARER (RFC 7628)."""
    return f"n,,\x01auth=Bearer {token}\x01\x01"


def _checked(where: str, text: str) -> str:
    token = text.strip()
    if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
        raise InvalidConfiguration(
            f"{where} holds no token of at most {TOKEN_BYTES_MAX} letters, digits and -_~+/.="
        )
    return token


def expiry_of(token: str) -> float:
    """The time in the token's claim `exp`, in seconds since the epoch.

    Nothing proves it. Raises InvalidConfiguration.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (LookupError, TypeError, ValueError):
        raise InvalidConfiguration("the token is no JSON Web Token with a claim exp") from None
