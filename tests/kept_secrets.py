"""The secrets that tests make. Fixtures keep them here, and `tests.secret_watch` finds them.

A secret of an import or of a fixture for several tests stays until the process ends. The secret of
one test stays until the test ends.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.security.scram import Verifier

LENGTH_MIN: Final = 8
"""Shorter texts occur in other words by chance."""
_KEYS_OF_VERIFIER: Final = re.compile(rb'"(?:stored_key|server_key|decoy_key)": ?"([^"]+)"')


class KeptSecrets:
    """Secrets, each with a description that may be shown."""

    def __init__(self) -> None:
        self._lasting: dict[str, str] = {}
        self._of_test: dict[str, str] = {}
        self._in_urls: set[str] = set()
        self._is_lasting = True

    def __bool__(self) -> bool:
        return bool(self._lasting or self._of_test)

    def keep(self, secret: str, description: str, *, is_in_urls: bool = False) -> str:
        """Keep a secret, and return it.

        With `is_in_urls`, tests give it to processes in a URL, so arguments may hold it.
        """
        if len(secret) < LENGTH_MIN:
            raise ValueError(f"{description} is shorter than {LENGTH_MIN} characters")
        (self._lasting if self._is_lasting else self._of_test).setdefault(secret, description)
        if is_in_urls:
            self._in_urls.add(secret)
        return secret

    def found_in(self, text: str, *, are_arguments: bool = False) -> list[str]:
        """The descriptions of the secrets in a text, which may be a process's arguments."""
        return [
            description
            for secrets in (self._lasting, self._of_test)
            for secret, description in secrets.items()
            if secret in text and not (are_arguments and secret in self._in_urls)
        ]

    def hidden(self, text: str) -> str:
        """The text without the secrets."""
        for secret in (*self._lasting, *self._of_test):
            text = text.replace(secret, "[secret]")
        return text

    @contextmanager
    def of_test(self) -> Iterator[None]:
        """Keep secrets during one test, and forget them after it."""
        self._is_lasting = False
        try:
            yield
        finally:
            self._is_lasting = True
            self._of_test.clear()

    @contextmanager
    def of_fixture(self, *, is_lasting: bool) -> Iterator[None]:
        """Keep secrets while a fixture is made."""
        before = self._is_lasting
        self._is_lasting = before or is_lasting
        try:
            yield
        finally:
            self._is_lasting = before


KEPT: Final = KeptSecrets()
"""The kept secrets of this process."""
keep: Final = KEPT.keep


def keep_private_key(pem: bytes, owner: str) -> None:
    """Keep the second line of a key in the PEM form, since many keys share the first line."""
    body = pem.decode().partition("PRIVATE KEY-----\n")[2]
    keep(body.splitlines()[1], f"the private key of {owner}")


def keep_token(token: str, owner: object) -> str:
    """Keep a JSON Web Token, which is worthless without its signature, and return it."""
    keep(token.rpartition(".")[2], f"a token of {owner}")
    return token


def keep_verifier(verifier: Verifier, user: str) -> Verifier:
    """Keep both keys of a verifier, as text and in the form in which programs write bytes. Returns
    the verifier."""
    for key in (verifier.stored_key, verifier.server_key):
        for text in (base64.b64encode(key).decode(), key.hex(), repr(key)[2:-1]):
            keep(text, f"a verifier of {user}")
    return verifier


def keep_verifiers_in(store: Path) -> None:
    """Keep all verifiers in a cluster's folder."""
    for path in store.glob("cluster/credentials/*"):
        for key in _KEYS_OF_VERIFIER.findall(path.read_bytes()):
            keep(key.decode(), "a verifier in the bucket")
