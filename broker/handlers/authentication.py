"""SaslHandshake and SaslAuthenticate on connections that are served already (KIP-368)."""

from __future__ import annotations

from tidelog.broker.authentication.sessions import Sessions, illegal_state
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
from tidelog.errors import TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


async def sasl_handshake(
    sessions: Sessions, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Begin a re-authentication; ILLEGAL_SASL_STATE at a listener without SASL."""
    session = sessions.of(context.connection_id)
    if session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return session.handshake(request.mechanism)


async def sasl_authenticate(
    sessions: Sessions, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """A step of a re-authentication."""
    session = sessions.of(context.connection_id)
    if session is None:
        return illegal_state()
    try:
        return await session.authenticate(bytes(request.auth_bytes))
    except TidelogError as error:
        raise CloseConnection("credentials_unavailable", str(error)) from error
