"""The mechanisms of SASL, as dialogues with one client each.

An unknown user and a wrong password get the same answers after the same work: the verifier of an
unknown user is a decoy (`records/credentials.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol

import scramp

from tidelog.broker.authentication.identity import LoginIdentity, Malformed, NotAuthenticated
from tidelog.coordinator.cluster.records.credentials import Credentials
from tidelog.entropy import Entropy
from tidelog.security.principal import Principal
from tidelog.security.scram import ScramMechanism, Verifier
from tidelog.workers.offload import Offload

PLAIN: Final = "PLAIN"
TOKEN_TEXT_BYTES_MAX: Final = 16 * 1024
"""A message of PLAIN or SCRAM; names and passwords are shorter."""

ReadCredentials = Callable[[], Awaitable[Credentials]]
"""The present verifiers. StoreError and CorruptObject if they cannot be read."""


class Exchanged(NamedTuple):
    """The server's next message; with the identity it is the last one."""

    message: bytes
    identity: LoginIdentity | None = None


class Exchange(Protocol):
    """One client's authentication by one mechanism."""

    async def step(self, token: bytes) -> Exchanged:
        """Take the client's next message.

        Raises NotAuthenticated, Malformed, and errors of the store.
        """
        ...


Mechanisms = Mapping[str, Callable[[], Exchange]]
"""The enabled mechanisms, by name: each begins an exchange."""


class PlainExchange:
    """PLAIN (RFC 4616): the client sends its name and its password."""

    def __init__(self, credentials: ReadCredentials, offload: Offload) -> None:
        self._credentials = credentials
        self._offload = offload

    async def step(self, token: bytes) -> Exchanged:
        parts = _text(token).split("\0")
        if len(parts) != 3:
            raise Malformed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise Malformed("Authentication failed: username not specified")
        if not password:
            raise Malformed("Authentication failed: password not specified")
        if authorization_id not in ("", user):
            raise Malformed(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        found = (await self._credentials()).any_verifier(user)
        if not await self._offload.run(Verifier.accepts, found, password):
            raise NotAuthenticated("Authentication failed: Invalid username or password")
        return Exchanged(b"", LoginIdentity(Principal(user)))


class ScramExchange:
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802): the client proves that it knows the password."""

    def __init__(
        self, mechanism: ScramMechanism, credentials: ReadCredentials, entropy: Entropy
    ) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._entropy = entropy
        self._user = ""
        self._server: scramp.ScramServer | None = None

    async def step(self, token: bytes) -> Exchanged:
        text = _text(token)
        try:
            if self._server is None:
                return await self._first(text)
            self._server.set_client_final(text)
            last = self._server.get_server_final()
        except scramp.ScramException:
            # Its text could tell a wrong password from an unknown user.
            raise NotAuthenticated("invalid credentials") from None
        return Exchanged(last.encode(), LoginIdentity(Principal(self._user)))

    async def _first(self, text: str) -> Exchanged:
        credentials = await self._credentials()

        def verifier_of(user: str) -> tuple[bytes, bytes, bytes, int]:
            self._user = user
            found = credentials.verifier(user, self._mechanism)
            return found.salt, found.stored_key, found.server_key, found.iterations

        nonce = self._entropy.uuid().hex + self._entropy.uuid().hex
        server = scramp.ScramMechanism(self._mechanism.title).make_server(
            verifier_of, s_nonce=nonce
        )
        server.set_client_first(text)
        self._server = server
        return Exchanged(server.get_server_first().encode())


def _text(token: bytes) -> str:
    if len(token) > TOKEN_TEXT_BYTES_MAX:
        raise Malformed(f"a message of {len(token)} bytes exceeds {TOKEN_TEXT_BYTES_MAX}")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise Malformed("a message is not UTF-8 text") from None
