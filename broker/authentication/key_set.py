"""The public keys that verify tokens: a JSON Web Key Set (RFC 7517). Pure.

The algorithms are a list of asymmetric ones. A key serves only the algorithms of its own type and
size. So no token can choose `none`, HMAC with a public key as the secret, or another key's
algorithm, whatever the key set holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tidelog.errors import TidelogError

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""The algorithms of tokens. All are asymmetric."""
KEYS_MAX: Final = 256
KEY_ID_LENGTH_MAX: Final = 1000
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 16384
HOSTILE: Final = (
    jwt.PyJWTError,
    UnsupportedAlgorithm,
    ValueError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
"""The library's errors for documents that an attacker has chosen: any means the same."""
_RSA_ALGORITHMS: Final = frozenset(ALGORITHMS[:6])
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PublicKey = (
    rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
)

_MAKERS: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}
"""Make a key, by the member `kty`."""


class UnusableKeySet(TidelogError):
    """A document is no set of keys, or holds no usable one."""


class VerificationKey(NamedTuple):
    """A public key, and the algorithms that it serves."""

    key_id: str | None
    algorithms: frozenset[str]
    public: PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of an issuer. Immutable."""

    keys: Sequence[VerificationKey] = ()
    left_out: Sequence[str] = field(default=())
    """Why keys of the document are not used."""

    def suited(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        """The key for a token with this header; None if there is none.

        A token without a key id has one only if a single key serves its algorithm.
        """
        found = [
            key
            for key in self.keys
            if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)
        ]
        return found[0] if len(found) == 1 or (found and key_id is not None) else None


def parse_key_set(data: bytes) -> KeySet:
    """The usable keys of a document. Raises UnusableKeySet.

    Keys of other kinds are left out, since an issuer may publish keys for other purposes.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise UnusableKeySet("it is not JSON") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise UnusableKeySet('it is not a key set: it has no list "keys"')
    if len(listed) > KEYS_MAX:
        raise UnusableKeySet(f"it has {len(listed)} keys; at most {KEYS_MAX} are read")
    keys, left_out = [], []
    for number, member in enumerate(listed, 1):
        try:
            keys.append(_key(member))
        except UnusableKeySet as error:
            left_out.append(f"key {number}: {error}")
    if not keys:
        raise UnusableKeySet("; ".join(["it has no usable key", *left_out[:3]]))
    return KeySet(keys, left_out)


def _key(member: object) -> VerificationKey:
    """One key. Raises UnusableKeySet."""
    if not isinstance(member, dict):
        raise UnusableKeySet("it is no object")
    if "d" in member or "k" in member:
        raise UnusableKeySet("it is a secret, which a key set must not publish")
    operations = member.get("key_ops", ["verify"])
    if member.get("use", "sig") != "sig" or not (
        isinstance(operations, list) and "verify" in operations
    ):
        raise UnusableKeySet("it does not verify signatures")
    key_id = member.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= KEY_ID_LENGTH_MAX):
        raise UnusableKeySet(f"its kid is no text of at most {KEY_ID_LENGTH_MAX} characters")
    public = _public(member)
    algorithms = frozenset(_algorithms(public))
    if "alg" in member:
        algorithms &= {member["alg"]} if isinstance(member["alg"], str) else set()
    if not algorithms:
        raise UnusableKeySet("its algorithm is not one of " + ", ".join(ALGORITHMS))
    return VerificationKey(key_id, algorithms, public)


def _public(member: dict[str, Any]) -> PublicKey:
    kind = member.get("kty")
    maker = _MAKERS.get(kind) if isinstance(kind, str) else None
    if maker is None:
        raise UnusableKeySet("its kty is not one of " + ", ".join(_MAKERS))
    try:
        made = maker(member)
    except HOSTILE:
        raise UnusableKeySet("its numbers make no public key") from None
    if not isinstance(made, PublicKey):
        raise UnusableKeySet("it is no public key")
    if isinstance(made, rsa.RSAPublicKey) and not RSA_BITS_MIN <= made.key_size <= RSA_BITS_MAX:
        raise UnusableKeySet(
            f"it has {made.key_size} bits; RSA keys need {RSA_BITS_MIN} to {RSA_BITS_MAX}"
        )
    return made


def _algorithms(public: PublicKey) -> Iterator[str]:
    if isinstance(public, rsa.RSAPublicKey):
        yield from _RSA_ALGORITHMS
    elif isinstance(public, ec.EllipticCurvePublicKey):
        if public.curve.name in _CURVE_ALGORITHMS:
            yield _CURVE_ALGORITHMS[public.curve.name]
    else:
        yield "EdDSA"
