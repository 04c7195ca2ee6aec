"""An issuer of tokens for tests: keys, their published set, tokens with any claims."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.kept_secrets import keep_token

ISSUER = "https://issuer.example"
AUDIENCE = "tidelog"
RSA_KEY = rsa.generate_private_key(65537, 2048)
"""All tests share one key, since making a key takes long."""
MAKERS = {
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ES512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


def jwk(key: Any, **members: object) -> dict[str, Any]:
    """The published form of a key."""
    algorithm: Any = ECAlgorithm
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = RSAAlgorithm
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        algorithm = OKPAlgorithm
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return found | members


class Issuer:
    """An issuer with one signing key at a time."""

    def __init__(self, algorithm: str = "ES256", key_id: str = "k1") -> None:
        self.algorithm = algorithm
        self.key: Any
        self.keys: list[dict[str, Any]] = []
        self.rotate(key_id)

    def rotate(self, key_id: str) -> None:
        """Sign with another key from now on."""
        self.key_id = key_id
        self.key = RSA_KEY if self.algorithm[0] in "RP" else MAKERS[self.algorithm]()
        self.keys = [jwk(self.key, kid=key_id, use="sig", alg=self.algorithm)]

    def key_set(self) -> bytes:
        """The key set as published."""
        return json.dumps({"keys": self.keys}).encode()

    def publish(self, path: Path) -> str:
        """Write the key set to a file. Returns its URL."""
        path.write_bytes(self.key_set())
        return f"file://{path}"

    def token(
        self, name: object = "alice", *, seconds: float = 300, headers: Any = None, **claims: object
    ) -> str:
        """A token that is good for some seconds. A claim of None is left out."""
        now = int(time.time())
        all_claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": name,
            "iat": now,
            "exp": now + seconds,
        } | claims
        token = jwt.encode(
            {claim: value for claim, value in all_claims.items() if value is not None},
            self.key,
            self.algorithm,
            {"kid": self.key_id} | (headers or {}),
        )
        return keep_token(token, name)

    def forged(self, header: dict[str, object], secret: bytes = b"") -> str:
        """A token that its forger signed with HMAC or left unsigned; its header may claim
        anything."""

        def part(data: bytes) -> str:
            return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "admin", "iat": now, "exp": now + 300}
        signed = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims).encode())}"
        signature = hmac.digest(secret, signed.encode(), hashlib.sha256) if secret else b""
        return f"{signed}.{part(signature)}"


def bearer(token: str, *, name: str = "", **extensions: str) -> bytes:
    """The first message of OAUTHBEARER."""
    pairs = {"auth": f"Bearer {token}"} | extensions
    told = "".join([f"{key}={value}\x01" for key, value in pairs.items()])
    return f"n,{f'a={name}' if name else ''},\x01{told}\x01".encode()
