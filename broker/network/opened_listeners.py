"""A broker's listeners: their addresses are taken, their certificates are read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NoReturn

from tidelog.broker.authentication.attempt import SaslTerms
from tidelog.broker.authentication.inter_broker import (
    InterBrokerSecurity,
    inter_broker_security,
)
from tidelog.broker.authentication.oauthbearer import signing_keys
from tidelog.broker.authentication.sasl import ENABLED, PresentCredentials, sasl_terms
from tidelog.broker.authentication.signing_keys import SigningKeys
from tidelog.broker.authentication.tls import ListenerTls, watch_files
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.network.reserved_address import ReservedAddress
from tidelog.broker.settings.listeners import ListenerConfigs, is_loopback
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.security import OAUTHBEARER
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedListeners:
    """All listeners of a broker."""

    addresses: tuple[ReservedAddress, ...]
    inter_broker: str
    """The listener by which brokers reach each other."""
    tls: Mapping[str, ListenerTls]
    """By listener, for those with TLS."""
    sasl: Mapping[str, SaslTerms]
    """By listener, for those with SASL."""
    keys: tuple[SigningKeys, ...]
    """Those that verify tokens, of each listener with OAUTHBEARER."""
    between_brokers: InterBrokerSecurity
    """How this broker connects to the listeners of others."""

    def reload_certificates(self) -> None:
        """Read all files of keys and certificates again, and the key sets of issuers."""
        for each in self._certificates():
            each.reload(forced=True)
        for keys in self.keys:
            keys.reload()

    async def watch_certificates(self, clock: Clock, interval_ms: int) -> NoReturn:
        """Take files of keys and certificates that change, for ever."""
        await watch_files(self._certificates(), clock, interval_ms)

    def _certificates(self) -> list[ListenerTls]:
        between = self.between_brokers.tls
        return [*self.tls.values(), *([] if between is None else [between])]


async def open_listeners(
    configs: ListenerConfigs,
    settings: BrokerSettings,
    environment: BrokerEnvironment,
    metadata: MetadataLog,
    closing: AsyncExitStack,
) -> OpenedListeners:
    """Take the addresses. Raises InvalidConfiguration for bad files, Refused for taken addresses.

    `closing` gives the addresses back.
    """
    tls = {
        each.name: ListenerTls(each.name, settings.at_listener(each.name))
        for each in configs.all
        if each.protocol.uses_tls
    }
    credentials = PresentCredentials(metadata, environment.store)
    network, clock = environment.network, environment.clock
    keys = {
        each.name: signing_keys(each.name, values, network, clock)
        for each in configs.all
        if each.protocol.uses_sasl
        and OAUTHBEARER in (values := settings.at_listener(each.name)).items_of(ENABLED)
    }
    sasl = {
        each.name: sasl_terms(
            each.name,
            settings.at_listener(each.name),
            credentials,
            environment.background,
            clock,
            environment.entropy,
            keys.get(each.name),
        )
        for each in configs.all
        if each.protocol.uses_sasl
    }
    between = next(each for each in configs.all if each.name == configs.inter_broker)
    security = inter_broker_security(between, settings)
    addresses = []
    for config in configs.all:
        addresses.append(await ReservedAddress.of(network, config))
        closing.push_async_callback(addresses[-1].close)
    for name, each in keys.items():
        if each.is_exposed:
            logger.warning(
                "keys that verify tokens come by HTTP: an attacker on the network could replace"
                " them; give sasl.oauthbearer.jwks.endpoint.url an address with https",
                extra={"listener": name},
            )
    opened = OpenedListeners(
        tuple(addresses), configs.inter_broker, tls, sasl, tuple(keys.values()), security
    )
    for name in unprotected(opened, settings):
        logger.warning(
            "clients beyond this machine can connect without authentication; give the listener a"
            " protocol with SASL, or SSL with ssl.client.auth=required",
            extra={"listener": name},
        )
    return opened


def unprotected(opened: OpenedListeners, settings: BrokerSettings) -> list[str]:
    """The listeners beyond loopback whose clients do not authenticate."""
    found = []
    for each in opened.addresses:
        config = each.config
        authenticates = config.protocol.uses_sasl or (
            config.protocol.uses_tls
            and settings.at_listener(config.name).text("ssl.client.auth") == "required"
        )
        if not authenticates and not is_loopback(each.address[0]):
            found.append(config.name)
    return found
