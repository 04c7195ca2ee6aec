"""A listener's keys and certificates, as a context for TLS handshakes.

A context is never changed: files that have changed make a new one for later handshakes.
Established connections keep theirs. Files that make no context leave the old one in force.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from cryptography import x509

from tidelog.broker.authentication.principal_rules import PrincipalRules
from tidelog.broker.settings.settings import TypedValues
from tidelog.clock import Clock
from tidelog.errors import InvalidConfiguration
from tidelog.security.principal import ANONYMOUS, Principal

logger = logging.getLogger(__name__)

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_KEY_BITS = re.compile(r"AES_(\d)")

FileStates = tuple[tuple[int, int, int] | None, ...]
"""The time, size and inode of each file, which show a change; None if the file does not exist."""

MakeContext = Callable[[str, TypedValues], ssl.SSLContext]
"""Makes a context from the name and the settings of a listener."""


class ListenerTls:
    """The keys and certificates of one listener."""

    def __init__(self, listener: str, values: TypedValues, make: MakeContext | None = None) -> None:
        """`values`: the settings of the listener. Raises InvalidConfiguration.

        `make`: makes the context; by default that for handshakes with clients.
        """
        self.listener = listener
        self._values = values
        self._make = make or server_context
        self._rules = PrincipalRules(values.text("ssl.principal.mapping.rules"))
        self._groups_attribute = values.optional_text("ssl.principal.groups.attribute")
        self._files = [
            Path(path)
            for name in ("ssl.keystore.location", "ssl.truststore.location")
            if (path := values.optional_text(name)) is not None
        ]
        self._seen = self._file_states()
        self.context = self._make(listener, values)
        """The context for new handshakes."""

    def reload(self, *, forced: bool = False) -> bool:
        """Take files that have changed, or all if `forced`; whether there is a new context.

        Files that cannot be used are logged, and the context stays.
        """
        states = self._file_states()
        if states == self._seen and not forced:
            return False
        self._seen = states
        try:
            self.context = self._make(self.listener, self._values)
        except InvalidConfiguration as error:
            logger.error(
                "changed certificates are not taken; the old ones stay in force",
                extra={"listener": self.listener, "why": str(error)},
            )
            return False
        logger.info("certificates taken", extra={"listener": self.listener})
        return True

    def principal(self, tls: ssl.SSLObject) -> Principal:
        """The principal of a client that has shaken hands. Raises NoRuleMatches."""
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None or self.context.verify_mode is ssl.CERT_NONE:
            return ANONYMOUS
        subject = x509.load_der_x509_certificate(certificate).subject
        name = self._rules.principal(subject.rfc4514_string())
        return Principal(name, groups_in(subject, self._groups_attribute))

    def _file_states(self) -> FileStates:
        return tuple([_state_of(path) for path in self._files])


async def watch_files(watched: Sequence[ListenerTls], clock: Clock, interval_ms: int) -> NoReturn:
    """Take files of keys and certificates that change, for ever."""
    while True:
        await clock.sleep(interval_ms / 1000)
        for each in watched:
            each.reload()


def groups_in(subject: x509.Name, attribute: str | None) -> tuple[str, ...]:
    """The values of an attribute of a distinguished name, by its short name or its number."""
    if attribute is None:
        return ()
    found = [
        str(each.value)
        for each in subject
        if attribute.upper() in (each.rfc4514_attribute_name.upper(), each.oid.dotted_string)
    ]
    return tuple(dict.fromkeys(found))


def server_context(listener: str, values: TypedValues) -> ssl.SSLContext:
    """The context for handshakes with clients. Raises InvalidConfiguration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _restrict(context, listener, values)
    _load_keys(context, listener, values)
    _load_trusted(context, listener, values)
    context.verify_mode = _CLIENT_AUTH[values.text("ssl.client.auth")]
    return context


def peer_context(listener: str, values: TypedValues) -> ssl.SSLContext:
    """The context for handshakes with other brokers at this listener.

    Without a trust store the authorities of the platform are trusted. Raises InvalidConfiguration.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = values.text("ssl.endpoint.identification.algorithm") == "https"
    _restrict(context, listener, values)
    _load_keys(context, listener, values)
    _load_trusted(context, listener, values)
    if values.optional_text("ssl.truststore.location") is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _restrict(context: ssl.SSLContext, listener: str, values: TypedValues) -> None:
    """Allow only the listener's versions and cipher suites."""
    versions = [_VERSIONS[name] for name in values.items_of("ssl.enabled.protocols")]
    if not versions:
        raise InvalidConfiguration(f"listener {listener}: ssl.enabled.protocols names no version")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    suites = values.items_of("ssl.cipher.suites")
    if suites:
        _choose_suites(context, suites)


def _load_keys(context: ssl.SSLContext, listener: str, values: TypedValues) -> None:
    path = values.optional_text("ssl.keystore.location")
    if path is None:
        raise InvalidConfiguration(
            f"listener {listener} has no certificate: set ssl.keystore.location, or"
            f" listener.name.{listener.lower()}.ssl.keystore.location, to a PEM file with its key"
            " and its certificate chain"
        )
    password = values.optional_text("ssl.key.password")
    try:
        # A password must be given: otherwise the library asks for it on the terminal.
        context.load_cert_chain(path, password=password or "")
    except OSError as error:
        raise _unusable("ssl.keystore.location", path, error) from None


def _load_trusted(context: ssl.SSLContext, listener: str, values: TypedValues) -> None:
    path = values.optional_text("ssl.truststore.location")
    if path is None:
        if values.text("ssl.client.auth") != "none":
            raise InvalidConfiguration(
                f"listener {listener} asks for certificates of clients and trusts no authority:"
                " set ssl.truststore.location"
            )
        return
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise _unusable("ssl.truststore.location", path, error) from None


def _unusable(setting: str, path: str, error: OSError) -> InvalidConfiguration:
    if not isinstance(error, ssl.SSLError):
        return InvalidConfiguration(f"{setting} = {path}: cannot be read: {error.strerror}")
    if error.reason == "KEY_VALUES_MISMATCH":
        why = "its private key does not belong to its first certificate"
    elif error.reason is None or "PASS" in error.reason or "DECRYPT" in error.reason:
        why = "it is no PEM file, or ssl.key.password does not open its private key"
    else:
        why = f"it is not a usable PEM file ({error.reason.replace('_', ' ').lower()})"
    return InvalidConfiguration(f"{setting} = {path}: {why}")


def _choose_suites(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    for name in suites:
        if name.startswith("TLS_") and "_WITH_" not in name:
            raise InvalidConfiguration(
                f"ssl.cipher.suites names {name}, a suite of TLS 1.3: these cannot be chosen, and"
                " all of them are safe; leave it out"
            )
        try:
            context.set_ciphers(_library_name(name))
        except ssl.SSLError:
            raise InvalidConfiguration(
                f"ssl.cipher.suites names {name}, which is unknown"
            ) from None
    context.set_ciphers(":".join(map(_library_name, suites)))


def _library_name(suite: str) -> str:
    """OpenSSL's name of a suite: its standard name, rearranged."""
    name = _KEY_BITS.sub(r"AES\1", suite.removeprefix("TLS_").replace("_WITH_", "_"))
    if "CHACHA20_POLY1305" in name:
        name = name.removesuffix("_SHA256")
    return name.replace("_", "-")


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
