"""The access to the HTTP server: its certificate and its bearer token."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from tidelog.broker.authentication.tls import ListenerTls
from tidelog.broker.settings.listeners import is_loopback
from tidelog.broker.settings.settings import BrokerSettings, TypedValues
from tidelog.errors import InvalidConfiguration

KEYSTORE: Final = "http.ssl.keystore.location"
TOKEN: Final = "http.bearer.token"  # noqa: S105 - a setting's name


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The protection of the HTTP server."""

    tls: ListenerTls | None = None
    """None: plain HTTP."""
    token: str = ""
    """Empty: requests need no token."""

    @classmethod
    def of(cls, settings: BrokerSettings) -> HttpAccess:
        """The protection by the settings. InvalidConfiguration for files that cannot be used."""
        token = settings.text(TOKEN)
        if settings.optional_text(KEYSTORE) is None:
            return cls(None, token)
        own = {
            "ssl.keystore.location": settings[KEYSTORE],
            "ssl.key.password": settings["http.ssl.key.password"],
            "ssl.truststore.location": None,
            "ssl.client.auth": "none",
        }
        try:
            return cls(ListenerTls("HTTP", TypedValues({**settings, **own})), token)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"settings http.ssl: {error}") from None

    def missing_at(self, host: str) -> list[str]:
        """The settings that a server on this host's address lacks; none on loopback."""
        if is_loopback(host):
            return []
        return [name for name, given in ((KEYSTORE, self.tls), (TOKEN, self.token)) if not given]

    def is_authorized(self, authorization: str | None) -> bool:
        """Whether a request with this `Authorization` header may see everything."""
        if not self.token:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        # The comparison takes the same time for each wrong token of a length.
        matches = hmac.compare_digest(given.strip().encode(), self.token.encode())
        return matches and scheme.lower() == "bearer"
