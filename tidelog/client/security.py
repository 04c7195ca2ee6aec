"""How a client protects its connections and authenticates, by confluent-kafka's names."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.bearer_token import (
    TOKEN,
    TOKEN_URL,
    GiveToken,
    bearer_message,
    given_token,
    token_file,
)
from tidelog.errors import InvalidConfiguration
from tidelog.security.security_protocol import SecurityProtocol

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
_NAMES: Final = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        TOKEN,
        TOKEN_URL,
    }
)
_IN_PLACE_OF: Final = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.": "ssl.ca.location, a PEM file with the authority's certificate",
    "ssl.keystore.": "ssl.certificate.location and ssl.key.location, PEM files",
}
"""The options that replace properties of the Java client, by the beginning of their names."""


@dataclass(frozen=True, slots=True)
class Login:
    """The name and the password of a client."""

    username: str
    password: str = field(repr=False)


GiveLogin = Callable[[], Login]
"""Gives the login for one authentication. Raises InvalidConfiguration."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The protection of a client's connections."""

    protocol: SecurityProtocol
    tls: Callable[[], ssl.SSLContext] | None = field(default=None, repr=False)
    """Gives the context of each new handshake, since certificates change; None: no TLS."""
    mechanism: str = ""
    login: GiveLogin | None = field(default=None, repr=False)
    """For PLAIN and SCRAM."""
    token: GiveToken | None = field(default=None, repr=False)
    """For OAUTHBEARER."""


def security_of(properties: Mapping[str, str]) -> ClientSecurity | None:
    """The security that these properties describe; None for plain text without authentication.

    Raises InvalidConfiguration, which repeats no value of a secret.
    """
    for name in properties:
        for beginning, instead in _IN_PLACE_OF.items():
            if name.startswith(beginning):
                raise InvalidConfiguration(
                    f"{name} is a property of the Java client; write {instead}"
                )
        if name not in _NAMES:
            raise InvalidConfiguration(
                f"unknown property {name}; known: {', '.join(sorted(_NAMES))}"
            )
    text = properties.get("security.protocol", "plaintext").upper()
    try:
        protocol = SecurityProtocol(text)
    except ValueError:
        known = ", ".join(each.value for each in SecurityProtocol)
        raise InvalidConfiguration(f"security.protocol = {text}: must be one of {known}") from None
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    tls = None
    if protocol.uses_tls:
        context = client_context(properties)
        tls = lambda: context  # noqa: E731
    if not protocol.uses_sasl:
        return ClientSecurity(protocol, tls)
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms", "")
    if mechanism not in MECHANISMS:
        raise InvalidConfiguration(
            f"sasl.mechanism = {mechanism}: must be one of {', '.join(MECHANISMS)}"
        )
    if mechanism == OAUTHBEARER:
        return ClientSecurity(protocol, tls, mechanism, token=token_of(properties))
    for name in ("sasl.username", "sasl.password"):
        if not properties.get(name):
            raise InvalidConfiguration(f"{mechanism} needs {name}")
    login = Login(properties["sasl.username"], properties["sasl.password"])
    return ClientSecurity(protocol, tls, mechanism, lambda: login)


def token_of(properties: Mapping[str, str]) -> GiveToken:
    """Gives the token that these properties tell. Raises InvalidConfiguration."""
    token, url = properties.get(TOKEN), properties.get(TOKEN_URL)
    if (not token) == (not url):
        raise InvalidConfiguration(f"{OAUTHBEARER} needs one of {TOKEN} and {TOKEN_URL}")
    return given_token(token) if token else token_file(TOKEN_URL, url or "")


def client_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """The context for handshakes with brokers. Raises InvalidConfiguration."""
    authority = properties.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise _unusable("ssl.ca.location", authority, error) from None
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm not in ("https", "none", ""):
        raise InvalidConfiguration("ssl.endpoint.identification.algorithm must be https or none")
    context.check_hostname = algorithm == "https"
    certificate = properties.get("ssl.certificate.location")
    if certificate is not None:
        try:
            # A password must be given: otherwise the library asks for it on the terminal.
            context.load_cert_chain(
                certificate,
                properties.get("ssl.key.location"),
                properties.get("ssl.key.password", ""),
            )
        except OSError as error:
            raise _unusable("ssl.certificate.location", certificate, error) from None
    return context


def _unusable(setting: str, path: str | None, error: OSError) -> InvalidConfiguration:
    why = "it is not a usable PEM file"
    if not isinstance(error, ssl.SSLError):
        why = f"cannot be read: {error.strerror}"
    return InvalidConfiguration(f"{setting} = {path}: {why}")


class SaslMessages:
    """The client's side of one authentication."""

    username = ""
    """The name in the login, once the first message is made."""

    def __init__(self, security: ClientSecurity) -> None:
        self._steps: list[Callable[[str], str]]
        if security.token is not None:
            give = security.token
            # A server that refuses the token tells why, and waits for this answer to that.
            self._steps = [
                lambda _: bearer_message(give()),
                lambda refusal: "\x01" if refusal else "",
                lambda _: "",
            ]
            return
        assert security.login is not None
        give_login = security.login

        def login() -> Login:
            given = give_login()
            self.username = given.username
            return given

        if security.mechanism == "PLAIN":
            self._steps = [lambda _: "\0{0.username}\0{0.password}".format(login()), lambda _: ""]
            return
        self._steps = _scram(security.mechanism, login)

    def next(self, received: bytes) -> bytes | None:
        """The answer to the server's message; None at the end.

        ValueError if the server lies, or if there is no login or token.
        """
        step = self._steps.pop(0)
        try:
            message = step(received.decode())
        except InvalidConfiguration as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # the library's own type; any failure means the same
            raise ValueError(f"the broker does not know the password: {error}") from error
        return message.encode() or None


def _scram(mechanism: str, login: GiveLogin) -> list[Callable[[str], str]]:
    import scramp

    machine: scramp.ScramClient

    def first(_: str) -> str:
        nonlocal machine
        given = login()
        machine = scramp.ScramClient([mechanism], given.username, given.password)
        return str(machine.get_client_first())

    def final(server_first: str) -> str:
        machine.set_server_first(server_first)
        return str(machine.get_client_final())

    def end(server_final: str) -> str:
        machine.set_server_final(server_final)
        return ""

    return [first, final, end]
