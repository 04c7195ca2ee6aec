"""HOST:PORT on the command line."""

from __future__ import annotations

from ipaddress import ip_address

import click

from tidelog.errors import InvalidConfiguration


class Address(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`; an IPv6 host is in brackets."""

    name = "HOST:PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """The host and the port, split at the last colon."""
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host.strip("[]"), int(port)


def shown(address: tuple[str, int]) -> str:
    """The address in its command-line form."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refuse_wildcard(advertised: tuple[str, int]) -> None:
    """Raises InvalidConfiguration if clients cannot connect to this address, such as 0.0.0.0."""
    try:
        is_wildcard = ip_address(advertised[0]).is_unspecified
    except ValueError:
        is_wildcard = advertised[0] == ""
    if is_wildcard:
        raise InvalidConfiguration(
            f"clients cannot connect to {shown(advertised)}: give the address that they reach with"
            " --advertise HOST:PORT"
        )
