"""HOST:PORT on the command line."""

from __future__ import annotations

import click


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
