"""How a broker protects its connections to other brokers, and authenticates there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tidelog.broker.authentication.jaas import parse_login
from tidelog.broker.authentication.tls import ListenerTls, peer_context
from tidelog.broker.settings.listeners import ListenerConfig
from tidelog.broker.settings.settings import (
    LISTENER_PREFIX,
    BrokerSettings,
    TypedValues,
)
from tidelog.client.bearer_token import TOKEN_URL, GiveToken, token_file
from tidelog.client.security import OAUTHBEARER, ClientSecurity, GiveLogin, Login
from tidelog.errors import InvalidConfiguration
from tidelog.security.security_protocol import SecurityProtocol

_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
_LOGIN: Final = "sasl.jaas.config"


@dataclass(frozen=True, slots=True)
class InterBrokerSecurity:
    """The broker's side as a client of the listener between brokers."""

    client: ClientSecurity | None
    """None: plain text without authentication."""
    tls: ListenerTls | None
    """The keys and certificates, which the broker takes again when their files change."""


def inter_broker_security(
    listener: ListenerConfig, settings: BrokerSettings
) -> InterBrokerSecurity:
    """The security by which brokers reach this listener. Raises InvalidConfiguration."""
    name, protocol = listener.name, listener.protocol
    if protocol is SecurityProtocol.PLAINTEXT:
        return InterBrokerSecurity(None, None)
    values = settings.at_listener(name)
    tls = ListenerTls(name, values, peer_context) if protocol.uses_tls else None
    client = ClientSecurity(protocol, None if tls is None else lambda: tls.context)
    if protocol.uses_sasl:
        mechanism = _mechanism(name, values)
        if mechanism == OAUTHBEARER:
            token = _token(name, values)
            return InterBrokerSecurity(replace(client, mechanism=mechanism, token=token), tls)
        login = _login(name, settings, mechanism)
        client = replace(client, mechanism=mechanism, login=login)
    return InterBrokerSecurity(client, tls)


def _mechanism(listener: str, values: TypedValues) -> str:
    mechanism = values.optional_text(_MECHANISM)
    enabled = values.items_of("sasl.enabled.mechanisms")
    if mechanism is None or mechanism not in enabled:
        raise InvalidConfiguration(
            f"brokers authenticate with each other at the listener {listener}: set {_MECHANISM} to"
            f" one of its sasl.enabled.mechanisms ({', '.join(enabled)})"
        )
    return mechanism


def _token(listener: str, values: TypedValues) -> GiveToken:
    url = values.optional_text(TOKEN_URL)
    setting = f"{LISTENER_PREFIX}{listener.lower()}.{TOKEN_URL}"
    if url is None:
        raise InvalidConfiguration(
            f"brokers authenticate with each other at the listener {listener}: set {setting} to the"
            " file with their token"
        )
    if values.get(f"{OAUTHBEARER.lower()}.{_LOGIN}") is not None:
        raise InvalidConfiguration(
            f"{LISTENER_PREFIX}{listener.lower()}.{OAUTHBEARER.lower()}.{_LOGIN} has no use: leave"
            f" it out, {setting} names the token"
        )
    give = token_file(setting, url)
    give()
    return give


def _login(listener: str, settings: BrokerSettings, mechanism: str) -> GiveLogin:
    setting = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}.{_LOGIN}"
    text = settings.optional_text(setting) if setting in settings else None
    if text is None:
        raise InvalidConfiguration(
            f"brokers authenticate with each other at the listener {listener}: set {setting} to"
            " their name and password"
        )
    reread = settings.rereads.get(setting, lambda: text)

    def give() -> Login:
        return parse_login(setting, reread(), mechanism)

    give()
    return give
