"""The results of an authentication: a client's identity, or the reason for a refusal. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import Refused
from tidelog.security.principal import Principal


class NotAuthenticated(Refused):
    """The client has not proved its identity. The answer tells no more.

    `why` is for the operator, and holds no secret.
    """

    def __init__(self, told: str, why: str = "") -> None:
        super().__init__(told)
        self.why = why


class Malformed(Refused):
    """A message does not have the mechanism's form. The client may be told why."""


class LoginIdentity(NamedTuple):
    """The client, and the time (milliseconds since the epoch) at which its credentials expire."""

    principal: Principal
    expires_ms: int | None = None
