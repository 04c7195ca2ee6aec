"""Authenticated connections: their expiry and their re-authentication (KIP-368)."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.authentication.attempt import (
    ILLEGAL_STATE,
    Established,
    LoginAttempt,
    SaslTerms,
)
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.sasl import (
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)


class LoginSession:
    """One connection's authentication."""

    def __init__(
        self,
        terms: SaslTerms,
        established: Established,
        renewed: Callable[[Established], None],
        failed: Callable[[], None],
    ) -> None:
        """`renewed` gets each later authentication; `failed` ends the connection after an
        answer."""
        self._terms = terms
        self._established = established
        self._renewed = renewed
        self._failed = failed
        self._attempt: LoginAttempt | None = None

    def handshake(self, mechanism: str) -> SaslHandshakeResponse:
        """Begin a re-authentication."""
        answer = self._terms.handshake(mechanism)
        if answer.error_code == ErrorCode.NONE:
            self._attempt = LoginAttempt(self._terms, mechanism, self._established)
        else:
            self._failed()
        return answer

    async def authenticate(self, token: bytes) -> SaslAuthenticateResponse:
        """The next step of a re-authentication. Raises errors of the store."""
        if self._attempt is None:
            return illegal_state()
        outcome = await self._attempt.step(token)
        if outcome.failed:
            self._failed()
        if (established := outcome.established) is not None:
            self._attempt = None
            self._established = established
            self._renewed(established)
        return outcome.response


class Sessions:
    """The sessions of a broker's connections, by the connections' ids."""

    def __init__(self) -> None:
        self._sessions: dict[int, LoginSession] = {}

    def begin(self, connection_id: int, session: LoginSession) -> None:
        """A connection has authenticated."""
        self._sessions[connection_id] = session

    def end(self, connection_id: int) -> None:
        """A connection has ended; one without a session is no error."""
        self._sessions.pop(connection_id, None)

    def of(self, connection_id: int) -> LoginSession | None:
        """A connection's session; None at listeners without SASL."""
        return self._sessions.get(connection_id)


def illegal_state() -> SaslAuthenticateResponse:
    """The answer where no authentication has begun."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=ILLEGAL_STATE
    )
