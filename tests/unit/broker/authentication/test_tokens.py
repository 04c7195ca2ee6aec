"""Which tokens are good, which principal each names, and which keys of a key set verify them."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.unit.broker.authentication.issuer import (
    AUDIENCE,
    ISSUER,
    RSA_KEY,
    Issuer,
    jwk,
)
from tidelog.broker.authentication.identity import LoginIdentity
from tidelog.broker.authentication.key_set import (
    ALGORITHMS,
    KEYS_MAX,
    UnusableKeySet,
    parse_key_set,
)
from tidelog.broker.authentication.tokens import (
    GROUPS_MAX,
    TokenRefused,
    TokenTerms,
    header_of,
    identity_of,
)

TERMS = TokenTerms(ISSUER, frozenset({AUDIENCE, "other"}), 30, "sub", "scope", "groups")


def accepted(
    issuer: Issuer, token: str, terms: TokenTerms = TERMS, later_seconds: float = 0
) -> LoginIdentity:
    header = header_of(token)
    key = parse_key_set(issuer.key_set()).suited(header.key_id, header.algorithm)
    if key is None:
        raise TokenRefused("no key")
    now_ms = int((time.time() + later_seconds) * 1000)
    return identity_of(token, header, key, terms, now_ms)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_proves_a_name_with_groups_until_the_expiry(algorithm: str) -> None:
    issuer = Issuer(algorithm)
    groups = ["ops", "readers", "ops"]
    identity = accepted(issuer, issuer.token("alice", exp=2_000_000_000, groups=groups))
    assert str(identity.principal) == "User:alice"
    assert identity.principal.groups == ("ops", "readers")
    assert identity.expires_ms == 2_000_000_000_000


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"seconds": -31}, "it has expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "2000000000"}, "no claim exp"),
        ({"exp": True}, "no claim exp"),
        ({"iat": None}, "no claim iat"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"iss": "https://other.example"}, "expected.issuer"),
        ({"iss": None}, "expected.issuer"),
        ({"aud": "elsewhere"}, "expected.audience"),
        ({"aud": None}, "expected.audience"),
        ({"aud": [1]}, "claim aud"),
        ({"name": None}, "no claim sub"),
        ({"name": " "}, "no claim sub"),
        ({"name": 7}, "no claim sub"),
        ({"name": "x" * 1025}, "over 1024"),
        ({"scope": " "}, "scopes"),
        ({"scope": ["a", "b", "a"]}, "scopes"),
        ({"scope": [["a"]]}, "claim scope"),
        ({"groups": {"a": 1}}, "claim groups"),
        ({"groups": ["a", 1]}, "claim groups"),
        ({"groups": ["x" * 1025]}, "over 1024"),
        ({"groups": [str(n) for n in range(GROUPS_MAX + 1)]}, "257 groups"),
        ({"headers": {"crit": ["exp"]}}, "no signed token"),
        ({"headers": {"b64": False, "crit": ["b64"]}}, "extensions"),
        ({"headers": {"kid": "k2"}}, "no key"),
        ({"headers": {"kid": "k" * 1001}}, "kid is no text"),
    ],
)
def test_a_token_without_a_claim_that_it_needs_is_refused(claims: Any, why: str) -> None:
    issuer = Issuer()
    with pytest.raises(TokenRefused, match=why):
        accepted(issuer, issuer.token(**claims))


def test_claims_that_no_setting_demands_are_not_compared() -> None:
    issuer = Issuer()
    any_terms = TokenTerms(None, frozenset(), 0, "upn", "scp", None)
    token = issuer.token(None, iss=None, aud=None, upn=" bob ", groups=[1], scope="a a")
    assert str(accepted(issuer, token, any_terms).principal) == "User:bob"
    assert accepted(issuer, token, any_terms).principal.groups == ()


def test_the_clocks_may_differ_by_the_skew() -> None:
    issuer = Issuer()
    token = issuer.token(seconds=10)
    assert accepted(issuer, token, later_seconds=39)
    with pytest.raises(TokenRefused, match="expired"):
        accepted(issuer, token, later_seconds=41)
    with pytest.raises(TokenRefused, match="signature"):
        accepted(issuer, token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB"))


def test_a_time_beyond_all_calendars_is_the_last_time() -> None:
    issuer = Issuer()
    identity = accepted(issuer, issuer.token(exp=10**300))
    assert identity.expires_ms == 253_402_300_799_000


PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        ({"alg": "none"}, b""),
        ({"alg": "None", "kid": "k1"}, b""),
        ({"alg": "HS256", "kid": "k1"}, PUBLIC_PEM),
        ({"alg": "HS256", "kid": "shared"}, b"a secret of 32 bytes, shared....."),
        ({"kid": "k1"}, b""),
        ({"alg": ["RS256"], "kid": "k1"}, b""),
    ],
)
def test_no_token_chooses_no_signature_or_hmac(header: dict[str, object], secret: bytes) -> None:
    """This holds for every key set, even if the HMAC secret is a public key or a shared secret."""
    issuer = Issuer("RS256")
    issuer.keys[0].pop("alg")
    shared = {"kty": "oct", "kid": "shared", "k": "YSBzZWNyZXQgb2YgMzIgYnl0ZXMsIHNoYXJlZC4uLi4u"}
    issuer.keys += [shared, jwk(RSA_KEY, kid="n", alg="none"), jwk(RSA_KEY, kid="h", alg="HS256")]
    assert len(parse_key_set(issuer.key_set()).keys) == 1
    with pytest.raises(TokenRefused, match=r"its algorithm is not one of RS256, .*EdDSA"):
        accepted(issuer, issuer.forged(header, secret))


@pytest.mark.parametrize(
    ("published", "signed"), [("RS256", "RS512"), ("RS256", "PS256"), ("ES256", "RS256")]
)
def test_a_key_serves_its_own_algorithm_alone(published: str, signed: str) -> None:
    issuer, thief = Issuer(published), Issuer(signed)
    with pytest.raises(TokenRefused, match="no key"):
        accepted(issuer, thief.token("admin"))


def test_a_signature_by_another_key_of_the_same_name_is_refused() -> None:
    with pytest.raises(TokenRefused, match="its signature is wrong"):
        accepted(Issuer(), Issuer().token("admin"))


def test_a_key_that_the_token_brings_itself_does_not_count() -> None:
    issuer, thief = Issuer(), Issuer()
    headers = {"jwk": thief.keys[0], "jku": "https://thief.example/jwks", "x5u": "https://t/x"}
    with pytest.raises(TokenRefused, match="its signature is wrong"):
        accepted(issuer, thief.token("admin", headers=headers))


def test_a_token_without_a_key_id_needs_a_single_key() -> None:
    issuer = Issuer()
    token = jwt.encode(
        jwt.decode(issuer.token(), options={"verify_signature": False}), issuer.key, "ES256"
    )
    assert accepted(issuer, token).principal.name == "alice"
    issuer.keys.append(Issuer().keys[0] | {"kid": "k2"})
    with pytest.raises(TokenRefused, match="no key"):
        accepted(issuer, token)


SMALL = jwk(rsa.generate_private_key(65537, 1024), kid="small")
OTHER_CURVE = jwk(ec.generate_private_key(ec.SECP256K1()), kid="k")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (SMALL, "it has 1024 bits"),
        (OTHER_CURVE, "its algorithm is not one of"),
        (Issuer().keys[0] | {"d": "AAAA"}, "it is a secret"),
        (Issuer().keys[0] | {"use": "enc"}, "it does not verify signatures"),
        (Issuer().keys[0] | {"key_ops": ["sign"]}, "it does not verify signatures"),
        (Issuer().keys[0] | {"alg": "ES384"}, "its algorithm is not one of"),
        (Issuer().keys[0] | {"kid": 7}, "its kid is no text"),
        (Issuer().keys[0] | {"x": "AAAA"}, "its numbers make no public key"),
        (Issuer().keys[0] | {"x": 7}, "its numbers make no public key"),
        ({"kty": "oct", "kid": "s"}, "its kty is not one of"),
        ("key", "it is no object"),
    ],
)
def test_keys_that_cannot_be_used_are_left_out(key: object, why: str) -> None:
    good = Issuer()
    found = parse_key_set(json.dumps({"keys": [key, good.keys[0]]}).encode())
    assert [each.key_id for each in found.keys] == ["k1"]
    assert found.left_out[0].startswith(f"key 1: {why}")
    with pytest.raises(UnusableKeySet, match=f"it has no usable key; key 1: {why}"):
        parse_key_set(json.dumps({"keys": [key]}).encode())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"{}", 'no list "keys"'),
        (b"[]", 'no list "keys"'),
        (b'{"keys": []}', "no usable key"),
        (json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(), "at most 256"),
    ],
)
def test_a_document_that_is_no_key_set_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(UnusableKeySet, match=why):
        parse_key_set(data)
