"""The listeners that a broker's settings and flags describe, by Kafka's rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from tidelog.broker.settings.settings import BrokerSettings
from tidelog.errors import InvalidConfiguration
from tidelog.security.security_protocol import SecurityProtocol

DEFAULT_LISTENER: Final = "PLAINTEXT"
"""The listener of a broker without the setting `listeners`."""
LISTENERS_MAX: Final = 32
_URL = re.compile(r"([A-Za-z0-9_]+)://(?:\[([0-9A-Fa-f:.%a-z]*)\]|([^\[\]:/\s]*)):([0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """A listener that a broker is to open."""

    name: str
    protocol: SecurityProtocol
    address: tuple[str, int] | None
    """None: the first free port on loopback, from Kafka's default port on."""
    advertised: tuple[str, int] | None
    """The address that clients are told; None: the listening address."""


@dataclass(frozen=True, slots=True)
class ListenerConfigs:
    """All listeners of a broker, in the order of the setting."""

    all: tuple[ListenerConfig, ...]
    inter_broker: str
    """The name of the listener by which brokers reach each other."""


@dataclass(frozen=True, slots=True)
class BoundListener:
    """A listener whose addresses are known."""

    name: str
    protocol: SecurityProtocol
    listening: tuple[str, int]
    advertised: tuple[str, int]


def is_wildcard(host: str) -> bool:
    """Whether a host stands for all interfaces, so that no client can connect to it."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host == ""


def is_loopback(host: str) -> bool:
    """Whether only clients on this machine can connect to an address of this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listener_url(name: str, address: tuple[str, int]) -> str:
    """A listener's address as Kafka's settings write it."""
    host, port = address
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"


def configured_listeners(
    settings: BrokerSettings,
    listen: tuple[str, int] | None,
    advertise: tuple[str, int] | None,
    own_host: str,
) -> ListenerConfigs:
    """The listeners of these settings, or else of the flags --listen and --advertise.

    `own_host` is advertised for a listener on all interfaces. Raises InvalidConfiguration.
    """
    protocols = _protocols(settings.text("listener.security.protocol.map"))
    text = settings.optional_text("listeners")
    if text is None:
        return _short_form(settings, listen, advertise, protocols)
    if listen is not None or advertise is not None:
        raise InvalidConfiguration(
            "listeners is set together with --listen or --advertise: the flags describe the only"
            " listener of a broker without `listeners`; leave them out"
        )
    addresses = _addresses("listeners", text)
    advertised = dict(addresses)
    told = settings.optional_text("advertised.listeners")
    if told is not None:
        advertised = _addresses("advertised.listeners", told)
        for name in advertised.keys() - addresses.keys():
            raise InvalidConfiguration(f"advertised.listeners names {name}, which listeners lacks")
    found = []
    for name, address in addresses.items():
        public = advertised.get(name)
        if public is None:
            raise InvalidConfiguration(
                f"advertised.listeners lacks {name}: no client could reach that listener"
            )
        found.append(_listener(name, protocols, address, _public(name, public, own_host)))
    _check_ports(found)
    return _with_inter_broker(settings, tuple(found))


def _short_form(
    settings: BrokerSettings,
    listen: tuple[str, int] | None,
    advertise: tuple[str, int] | None,
    protocols: dict[str, SecurityProtocol],
) -> ListenerConfigs:
    told = settings.optional_text("advertised.listeners")
    if told is not None:
        if advertise is not None:
            raise InvalidConfiguration("advertised.listeners and --advertise are the same: use one")
        addresses = _addresses("advertised.listeners", told)
        if list(addresses) != [DEFAULT_LISTENER]:
            raise InvalidConfiguration(
                "advertised.listeners must name just PLAINTEXT unless listeners is set"
            )
        advertise = _public(DEFAULT_LISTENER, addresses[DEFAULT_LISTENER], "")
    only = _listener(DEFAULT_LISTENER, protocols, listen, advertise)
    return _with_inter_broker(settings, (only,))


def _listener(
    name: str,
    protocols: dict[str, SecurityProtocol],
    address: tuple[str, int] | None,
    advertised: tuple[str, int] | None,
) -> ListenerConfig:
    if name not in protocols:
        raise InvalidConfiguration(
            f"no security protocol is defined for listener {name}: add {name}:PROTOCOL to"
            " listener.security.protocol.map"
        )
    return ListenerConfig(name, protocols[name], address, advertised)


def _public(name: str, address: tuple[str, int], own_host: str) -> tuple[str, int]:
    """The address for clients. Raises InvalidConfiguration if they cannot connect to it."""
    host, port = address
    if is_wildcard(host or own_host):
        raise InvalidConfiguration(
            f"advertised.listeners cannot tell clients {name}://{host}:{port}, a wildcard: give the"
            " address that they reach"
        )
    return host or own_host, port


def _protocols(text: str) -> dict[str, SecurityProtocol]:
    found: dict[str, SecurityProtocol] = {}
    for item in _items(text):
        name, colon, protocol = item.partition(":")
        name = name.strip().upper()
        if not colon or not _NAME.fullmatch(name):
            raise InvalidConfiguration(
                f"listener.security.protocol.map has {item!r}, which is not NAME:PROTOCOL"
            )
        if name in found:
            raise InvalidConfiguration(f"listener.security.protocol.map names {name} twice")
        try:
            found[name] = SecurityProtocol(protocol.strip().upper())
        except ValueError:
            known = ", ".join(each.value for each in SecurityProtocol)
            raise InvalidConfiguration(
                f"listener.security.protocol.map gives {name} the protocol {protocol.strip()!r};"
                f" there are {known}"
            ) from None
    return found


def _addresses(setting: str, text: str) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for item in _items(text):
        match = _URL.fullmatch(item)
        if match is None or int(match[4]) > 65535:
            raise InvalidConfiguration(
                f"{setting} has {item!r}, which is not NAME://HOST:PORT (an IPv6 host in brackets)"
            )
        name = match[1].upper()
        if name in found:
            raise InvalidConfiguration(f"{setting} names {name} twice: each listener has one name")
        found[name] = (match[2] if match[2] is not None else match[3], int(match[4]))
    if not 1 <= len(found) <= LISTENERS_MAX:
        raise InvalidConfiguration(f"{setting} must name 1 to {LISTENERS_MAX} listeners")
    return found


def _items(text: str) -> Iterator[str]:
    return (item.strip() for item in text.split(",") if item.strip())


def _check_ports(listeners: list[ListenerConfig]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for each in listeners:
        address = each.address
        if address is None or address[1] == 0:
            continue
        if address in taken:
            raise InvalidConfiguration(
                f"listeners gives {each.name} and {taken[address]} the same address"
            )
        taken[address] = each.name


def _with_inter_broker(
    settings: BrokerSettings, listeners: tuple[ListenerConfig, ...]
) -> ListenerConfigs:
    return ListenerConfigs(
        listeners, _inter_broker(settings, tuple([each.name for each in listeners]))
    )


def _inter_broker(settings: BrokerSettings, names: tuple[str, ...]) -> str:
    name = settings.optional_text("inter.broker.listener.name")
    protocol = settings.optional_text("security.inter.broker.protocol")
    if name is not None and protocol is not None:
        raise InvalidConfiguration(
            "only one of inter.broker.listener.name and security.inter.broker.protocol may be set"
        )
    found = (name or protocol or DEFAULT_LISTENER).upper()
    if found not in names:
        raise InvalidConfiguration(
            f"brokers reach each other by the listener {found}, which listeners lacks: set"
            " inter.broker.listener.name to one of its names"
        )
    return found
