"""SaslHandshake (17) and SaslAuthenticate (36): authentication of the client."""

from __future__ import annotations

from tidelog.protocol.fields import array, binary, int16, int64, string
from tidelog.protocol.message import Request, Response
from tidelog.protocol.wire import Buffer


class SaslHandshakeRequest(Request["SaslHandshakeResponse"], api_key=17, versions=(0, 1)):
    """Name the mechanism."""

    mechanism: str = string()


class SaslHandshakeResponse(Response, api_key=17, versions=(0, 1)):
    """Tells whether the mechanism is enabled, and lists the enabled ones."""

    error_code: int = int16()
    mechanisms: list[str] = array(string)


class SaslAuthenticateRequest(
    Request["SaslAuthenticateResponse"], api_key=36, versions=(0, 2), flexible=2
):
    """A step of the mechanism."""

    auth_bytes: Buffer = binary()


class SaslAuthenticateResponse(Response, api_key=36, versions=(0, 2), flexible=2):
    """The answer to a step; the session lasts `session_lifetime_ms`, 0: for ever."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: Buffer = binary()
    session_lifetime_ms: int = int64("1+")
