"""The verifiers of all users, and the object that holds them (docs/formats/metadata.md).

The metadata log names the object that counts. It holds no verifier itself: readers of the bucket
read the log, and must not read verifiers.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.coordinator.cluster.records.codec import Mismatch, from_json, to_json
from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.errors import CorruptObject
from tidelog.security.scram import ITERATIONS_MIN, ScramMechanism, Verifier
from tidelog.storage.object_store import Buffer

CREDENTIALS_PREFIX: Final = "cluster/credentials/"
CREDENTIALS_SUFFIX: Final = ".json"
CREDENTIALS_MAGIC: Final = "tidelog.credentials"
CREDENTIALS_FORMAT: Final = 1
CREDENTIALS_MAX: Final = 10_000
"""Credentials of all users: they are one object."""
DECOY_KEY_BYTES: Final = 32
_DECOY_SALT_BYTES: Final = 24

UserKey = tuple[str, ScramMechanism]


@dataclass(frozen=True, slots=True)
class Credentials:
    """All users' verifiers. Immutable."""

    decoy_key: bytes = b""
    """The secret that the salts of unknown users are derived from."""
    verifiers: Mapping[UserKey, Verifier] = field(default_factory=dict)

    def changed(self, deleted: Iterable[UserKey], added: Mapping[UserKey, Verifier]) -> Credentials:
        """These credentials without `deleted`, with `added`."""
        gone = frozenset(deleted)
        kept = {key: each for key, each in self.verifiers.items() if key not in gone}
        return Credentials(self.decoy_key, {**kept, **added})

    def verifier(self, user: str, mechanism: ScramMechanism) -> Verifier:
        """The user's verifier; for an unknown user a decoy that no password fits.

        The decoy is made for known users too: else the time would tell them from unknown ones.
        """
        decoy = self._decoy(user, [mechanism])
        return self.verifiers.get((user, mechanism), decoy)

    def any_verifier(self, user: str) -> Verifier:
        """The user's verifier of any mechanism, or a decoy, which is always made."""
        found = self._decoy(user, list(ScramMechanism))
        for mechanism in ScramMechanism:
            found = self.verifiers.get((user, mechanism), found)
        return found

    def _decoy(self, user: str, mechanisms: list[ScramMechanism]) -> Verifier:
        """The same for a name each time, and like the verifiers of known users in form."""
        likes = [each for each in self.verifiers.values() if each.mechanism in mechanisms]
        iterations, mechanism, salt_bytes = ITERATIONS_MIN, mechanisms[-1], _DECOY_SALT_BYTES
        if likes:
            drawn = int.from_bytes(self._derived("like", user)[:8], "big") % len(likes)
            like = likes[drawn]
            iterations, mechanism = like.iterations, like.mechanism
            salt_bytes = len(like.salt)
        salt = b"".join(self._derived(f"salt {part}", user) for part in range(salt_bytes // 64 + 1))
        # No password is known that hashes to these keys.
        size = 32 if mechanism is ScramMechanism.SCRAM_SHA_256 else 64
        stored, server = self._derived("stored", user), self._derived("server", user)
        return Verifier(mechanism, iterations, salt[:salt_bytes], stored[:size], server[:size])

    def _derived(self, purpose: str, user: str) -> bytes:
        return hmac.digest(self.decoy_key or b"\0", f"{purpose} {user}".encode(), "sha512")


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    mechanism: str
    iterations: int
    salt: str
    stored_key: str
    server_key: str


@dataclass(frozen=True, slots=True)
class _Document:
    decoy_key: str
    users: tuple[_User, ...]


def encode_credentials(credentials: Credentials) -> bytes:
    """The object of all verifiers."""
    users = tuple(
        [
            _User(
                name,
                mechanism.title,
                each.iterations,
                _text(each.salt),
                _text(each.stored_key),
                _text(each.server_key),
            )
            for (name, mechanism), each in credentials.verifiers.items()
        ]
    )
    document = _Document(_text(credentials.decoy_key), users)
    return encode_document(CREDENTIALS_MAGIC, CREDENTIALS_FORMAT, to_json(document))


def decode_credentials(key: str, data: Buffer) -> Credentials:
    """The verifiers in the object at `key`. Raises CorruptObject, UnsupportedFormat."""
    members = decode_document(key, data, CREDENTIALS_MAGIC, CREDENTIALS_FORMAT)
    try:
        document = from_json(_Document, members)
        return Credentials(
            _bytes(document.decoy_key),
            {(each.name, verifier.mechanism): verifier for each, verifier in _users(document)},
        )
    except (Mismatch, KeyError, binascii.Error) as error:
        # The error's text could tell a verifier.
        raise CorruptObject(key, f"it holds no credentials ({type(error).__name__})") from None


def _users(document: _Document) -> Iterable[tuple[_User, Verifier]]:
    for each in document.users:
        yield (
            each,
            Verifier(
                ScramMechanism.named(each.mechanism),
                each.iterations,
                _bytes(each.salt),
                _bytes(each.stored_key),
                _bytes(each.server_key),
            ),
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
