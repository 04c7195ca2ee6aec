"""Verifies JSON Web Tokens (RFC 7519), and reads the principals that they name. Pure.

The signature is checked before any claim is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt

from tidelog.broker.authentication.identity import LoginIdentity
from tidelog.broker.authentication.key_set import (
    ALGORITHMS,
    HOSTILE,
    KEY_ID_LENGTH_MAX,
    VerificationKey,
)
from tidelog.errors import Refused
from tidelog.security.principal import Principal

GROUPS_MAX: Final = 256
"""Groups of one principal: each decision compares all of them with the rules."""
NAME_LENGTH_MAX: Final = 1024
"""Characters of a principal's or a group's name, as long as one in a rule."""
_TIME_MAX: Final = 253_402_300_799
"""Seconds since the epoch; the end of year 9999."""
_JWS: Final = jwt.PyJWS(algorithms=list(ALGORITHMS))
"""Knows no other algorithms."""

Claims = Mapping[str, Any]


class TokenRefused(Refused):
    """A token is no good. The text tells the operator why, and repeats no part of the token."""


class TokenTerms(NamedTuple):
    """A listener's demands on tokens."""

    issuer: str | None
    """None: any."""
    audiences: frozenset[str]
    """Empty: any."""
    skew_seconds: int
    """By how much the issuer's clock may differ."""
    subject_claim: str
    """The claim of the principal's name."""
    scope_claim: str
    groups_claim: str | None
    """None: principals have no groups."""


class TokenHeader(NamedTuple):
    """How a token claims to be signed."""

    algorithm: str
    key_id: str | None


def header_of(token: str) -> TokenHeader:
    """The header, not verified. Raises TokenRefused."""
    try:
        header = _JWS.get_unverified_header(token)
    except HOSTILE:
        raise TokenRefused("it is no signed token") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused("its algorithm is not one of " + ", ".join(ALGORITHMS))
    if "crit" in header or "b64" in header:
        raise TokenRefused("its header has extensions that are not supported")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= KEY_ID_LENGTH_MAX):
        raise TokenRefused(f"its kid is no text of at most {KEY_ID_LENGTH_MAX} characters")
    return TokenHeader(algorithm, key_id)


def identity_of(
    token: str, header: TokenHeader, key: VerificationKey, terms: TokenTerms, now_ms: int
) -> LoginIdentity:
    """The identity that a good token proves, and its expiry. Raises TokenRefused."""
    if header.algorithm not in key.algorithms:
        raise TokenRefused("its algorithm is not that of its key")
    try:
        payload = _JWS.decode(token, key.public, algorithms=[header.algorithm])
        claims = json.loads(payload)
    except jwt.InvalidSignatureError:
        raise TokenRefused("its signature is wrong") from None
    except HOSTILE:
        raise TokenRefused("it cannot be decoded") from None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims are no object")
    expires = _check_times(claims, terms.skew_seconds, now_ms / 1000)
    _check_parties(claims, terms)
    _check_scopes(claims.get(terms.scope_claim), terms.scope_claim)
    name = claims.get(terms.subject_claim)
    if not isinstance(name, str) or not name.strip():
        raise TokenRefused(f"it has no claim {terms.subject_claim} with a name")
    _check_length(name, terms.subject_claim)
    return LoginIdentity(Principal(name.strip(), _groups(claims, terms)), int(expires * 1000))


def _check_times(claims: Claims, skew_seconds: int, now: float) -> float:
    """The time at which the token expires, in seconds since the epoch."""
    expires = _time(claims, "exp")
    _time(claims, "iat")
    if expires + skew_seconds <= now:
        raise TokenRefused("it has expired")
    if "nbf" in claims and _time(claims, "nbf") - skew_seconds > now:
        raise TokenRefused("it is not valid yet")
    return expires


def _time(claims: Claims, claim: str) -> float:
    value = claims.get(claim)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"it has no claim {claim} with a time")
    if isinstance(value, float) and not math.isfinite(value):
        raise TokenRefused(f"its claim {claim} is no time")
    return max(0, min(value, _TIME_MAX))


def _check_parties(claims: Claims, terms: TokenTerms) -> None:
    if terms.issuer is not None and claims.get("iss") != terms.issuer:
        raise TokenRefused("its issuer is not sasl.oauthbearer.expected.issuer")
    if terms.audiences and terms.audiences.isdisjoint(_texts(claims.get("aud"), "aud")):
        raise TokenRefused("its audience is not in sasl.oauthbearer.expected.audience")


def _check_scopes(value: object, claim: str) -> None:
    """As in Kafka: a text or a list of texts, none blank and none twice."""
    if not isinstance(value, str | list):
        return
    scopes = [scope.strip() for scope in _texts(value, claim)]
    if not all(scopes) or len(set(scopes)) < len(scopes):
        raise TokenRefused(f"its claim {claim} has blank scopes, or the same twice")


def _groups(claims: Claims, terms: TokenTerms) -> tuple[str, ...]:
    """The groups. A denied group must not get lost, so a bad list is refused as a whole."""
    claim = terms.groups_claim
    if claim is None or claims.get(claim) is None:
        return ()
    groups = tuple(dict.fromkeys(_texts(claims[claim], claim)))
    if len(groups) > GROUPS_MAX:
        raise TokenRefused(f"its claim {claim} has {len(groups)} groups; {GROUPS_MAX} are taken")
    for group in groups:
        _check_length(group, claim)
    return groups


def _texts(value: object, claim: str) -> list[str]:
    items: list[object] = value if isinstance(value, list) else [] if value is None else [value]
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise TokenRefused(f"its claim {claim} is neither a text nor a list of texts")
    return texts


def _check_length(name: str, claim: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise TokenRefused(f"its claim {claim} has a name of over {NAME_LENGTH_MAX} characters")
