"""The verifiers of passwords that a server keeps for SCRAM (RFC 5802), by the standard library.

A verifier proves that a client knows the password. The password cannot be had from it but by trying
passwords.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import Final, NamedTuple


class ScramMechanism(IntEnum):
    """A mechanism, by Kafka's number."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        """The name in SASL."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash function's name."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @classmethod
    def named(cls, title: str) -> ScramMechanism:
        """The mechanism of a name in SASL. Raises KeyError."""
        return cls[title.replace("-", "_")]


ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
SALT_BYTES_MIN: Final = 12


class Verifier(NamedTuple):
    """The values by which a server verifies one user's password for one mechanism."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def accepts(self, password: str) -> bool:
        """Whether this is the password. It takes milliseconds."""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        made = verifier(self.mechanism, salted, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """The salted password, which takes milliseconds to compute."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def verifier(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> Verifier:
    """The verifier for a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return Verifier(
        mechanism,
        iterations,
        salt,
        hashlib.new(mechanism.digest, client_key).digest(),
        hmac.digest(salted, b"Server Key", mechanism.digest),
    )
