"""An authentication in Kafka's messages: the same before a connection is served and afterwards."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from tidelog.broker.authentication.identity import LoginIdentity, Malformed, NotAuthenticated
from tidelog.broker.authentication.mechanisms import Exchange, Mechanisms
from tidelog.clock import Clock
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.sasl import (
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from tidelog.security.principal import Principal

logger = logging.getLogger(__name__)

ILLEGAL_STATE: Final = "SaslAuthenticate request received after successful authentication"


TELLING: Final = frozenset({"PLAIN", "OAUTHBEARER"})
"""Mechanisms whose own error messages the broker sends to a refused client, as in Kafka."""


class Established(NamedTuple):
    """A successful authentication: the client, the mechanism, how long it holds (0: for ever)."""

    principal: Principal
    mechanism: str
    lifetime_ms: int


class Outcome(NamedTuple):
    """The answer to a step, and its effect."""

    response: SaslAuthenticateResponse
    established: Established | None = None
    failed: bool = False
    why: str = ""
    """Why it failed, for the operator."""


class SaslTerms(NamedTuple):
    """How the clients of a listener authenticate."""

    mechanisms: Mechanisms
    max_reauth_ms: int
    """How long an authentication holds at most; 0: as long as the credentials."""
    failure_delay_seconds: float
    request_bytes_max: int
    """Before the client has authenticated."""
    clock: Clock

    def handshake(self, mechanism: str) -> SaslHandshakeResponse:
        """Whether the mechanism is enabled, and which ones are."""
        code = ErrorCode.NONE
        if mechanism not in self.mechanisms:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return SaslHandshakeResponse(error_code=code, mechanisms=list(self.mechanisms))

    def lifetime_ms(self, identity: LoginIdentity) -> int:
        """How long an authentication that ends now holds (KIP-368); 0: for ever."""
        limits = [self.max_reauth_ms] if self.max_reauth_ms > 0 else []
        if identity.expires_ms is not None:
            limits.append(max(1, identity.expires_ms - self.clock.time_ms()))
        return min(limits, default=0)


class LoginAttempt:
    """One authentication by one mechanism, of an enabled one."""

    def __init__(self, terms: SaslTerms, mechanism: str, before: Established | None = None) -> None:
        """`before`: the authentication that this one shall renew."""
        self._terms = terms
        self.mechanism = mechanism
        self._before = before
        self._exchange: Exchange = terms.mechanisms[mechanism]()

    async def step(self, token: bytes) -> Outcome:
        """Take the client's next message. A failure is answered after its delay.

        Raises errors of the store: nothing is known of the client then.
        """
        try:
            self._check_mechanism()
            message, identity = await self._exchange.step(token)
            established = None
            lifetime_ms = 0
            if identity is not None:
                self._check_principal(identity.principal)
                lifetime_ms = self._terms.lifetime_ms(identity)
                established = Established(identity.principal, self.mechanism, lifetime_ms)
        except (Malformed, NotAuthenticated) as refusal:
            await self._terms.clock.sleep(self._terms.failure_delay_seconds)
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=self._error_message(refusal),
            )
            why = f"mechanism {self.mechanism}: {_noted(refusal)}"
            return Outcome(response, failed=True, why=why)
        response = SaslAuthenticateResponse(
            error_message=None, auth_bytes=message, session_lifetime_ms=lifetime_ms
        )
        return Outcome(response, established)

    def _check_mechanism(self) -> None:
        if self._before is not None and self._before.mechanism != self.mechanism:
            raise Malformed(
                f"SASL mechanism '{self.mechanism}' requested by client is not supported for"
                f" re-authentication of mechanism '{self._before.mechanism}'"
            )

    def _check_principal(self, principal: Principal) -> None:
        if self._before is not None and self._before.principal.name != principal.name:
            raise Malformed(
                "Cannot change principals during re-authentication from"
                f" {self._before.principal} to {principal}"
            )

    def _error_message(self, refusal: Refused) -> str:
        """Kafka's words. Those of SCRAM tell nothing but a bad form."""
        if isinstance(refusal, Malformed) or self.mechanism in TELLING:
            return str(refusal)
        which = "authentication" if self._before is None else "re-authentication"
        return (
            f"Authentication failed during {which} due to invalid credentials with SASL mechanism"
            f" {self.mechanism}"
        )


def _noted(refusal: Refused) -> str:
    return (isinstance(refusal, NotAuthenticated) and refusal.why) or str(refusal)
