"""OAUTHBEARER (RFC 7628): the client sends a token that its issuer has signed."""

from __future__ import annotations

import json
from typing import Final

from tidelog.broker.authentication.bearer_message import parse_bearer_message
from tidelog.broker.authentication.identity import LoginIdentity, NotAuthenticated
from tidelog.broker.authentication.key_set import UnusableKeySet, parse_key_set
from tidelog.broker.authentication.key_source import (
    SETTING,
    KeyUrl,
    key_reader,
    parse_key_url,
    read_key_file,
)
from tidelog.broker.authentication.mechanisms import Exchanged
from tidelog.broker.authentication.signing_keys import KeyTimes, SigningKeys
from tidelog.broker.authentication.tokens import (
    TokenRefused,
    TokenTerms,
    header_of,
    identity_of,
)
from tidelog.broker.settings.settings import TypedValues
from tidelog.client.security import OAUTHBEARER
from tidelog.clock import Clock
from tidelog.errors import InvalidConfiguration, Unreachable
from tidelog.network import Network

INVALID_TOKEN: Final = json.dumps({"status": "invalid_token"}, separators=(",", ":"))
"""The answer to a token that is no good, as Kafka gives it."""


_TIMES: Final = (
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.unknown.key.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.keys.max.age.ms",
)
"""The settings of KeyTimes, in its order."""


class OAuthBearerExchange:
    """One client's authentication by a token."""

    def __init__(self, keys: SigningKeys, terms: TokenTerms, clock: Clock) -> None:
        self._keys = keys
        self._terms = terms
        self._clock = clock
        self._refusal: str | None = None

    async def step(self, token: bytes) -> Exchanged:
        """See Exchange. The broker reports a bad token, takes the client's answer, and refuses.

        Raises KeysUnavailable.
        """
        if self._refusal is not None:
            raise NotAuthenticated(INVALID_TOKEN, self._refusal)
        message = parse_bearer_message(token)
        try:
            identity = await self._identity(message.token)
        except TokenRefused as refused:
            self._refusal = str(refused)
            return Exchanged(INVALID_TOKEN.encode())
        name = identity.principal.name
        if message.authorization_id not in ("", name):
            raise NotAuthenticated(
                "Authentication failed: Client requested an authorization id that is different"
                " from the token's principal name"
            )
        return Exchanged(b"", identity)

    async def _identity(self, token: str) -> LoginIdentity:
        header = header_of(token)
        key = await self._keys.find(header.key_id, header.algorithm)
        if key is None:
            raise TokenRefused("its key is not in the key set")
        return identity_of(token, header, key, self._terms, self._clock.time_ms())


def token_terms(values: TypedValues) -> TokenTerms:
    """A listener's demands on tokens, from its settings."""
    return TokenTerms(
        values.optional_text("sasl.oauthbearer.expected.issuer"),
        frozenset(values.items_of("sasl.oauthbearer.expected.audience")),
        values.integer("sasl.oauthbearer.clock.skew.seconds"),
        values.text("sasl.oauthbearer.sub.claim.name"),
        values.text("sasl.oauthbearer.scope.claim.name"),
        values.optional_text("sasl.oauthbearer.groups.claim.name"),
    )


def signing_keys(listener: str, values: TypedValues, network: Network, clock: Clock) -> SigningKeys:
    """The keys of a listener's issuer, which are not read yet.

    A file must be usable already. A server need not be there: brokers must be able to start without
    it. Raises InvalidConfiguration.
    """
    text = values.optional_text(SETTING)
    if text is None:
        raise InvalidConfiguration(
            f"listener {listener} has {OAUTHBEARER} and no keys that verify tokens: set {SETTING}"
        )
    url = parse_key_url(text)
    bytes_max = values.integer("sasl.oauthbearer.jwks.endpoint.response.max.bytes")
    if url.scheme == "file":
        _check_file(url, bytes_max)
    seconds_max = values.integer("sasl.oauthbearer.jwks.endpoint.timeout.ms") / 1000
    times = KeyTimes(*[values.integer(name) / 1000 for name in _TIMES])
    read = key_reader(url, network, seconds_max, bytes_max)
    return SigningKeys(str(url), read, times, clock, is_exposed=url.is_exposed)


def _check_file(url: KeyUrl, bytes_max: int) -> None:
    try:
        parse_key_set(read_key_file(url, bytes_max))
    except (Unreachable, UnusableKeySet) as error:
        raise InvalidConfiguration(f"{SETTING} = {url}: {error}") from None
