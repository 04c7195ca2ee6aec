"""HOST:PORT on the command line."""

from __future__ import annotations

from typing import TypeAlias

import click

from tidelog.addresses import parse_address

Bootstrap: TypeAlias = tuple[tuple[str, int], ...]
"""Hosts and ports of some brokers, at least one. A command tries them in turn."""


class Address(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`; an IPv6 host is in brackets."""

    name = "HOST:PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """The host and the port."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_address(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Addresses(click.ParamType[Bootstrap]):
    """`HOST:PORT,HOST:PORT`. As in Kafka, empty entries do not count."""

    name = "HOST:PORT,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Bootstrap:
        """The addresses in their order. An error names each wrong entry."""
        if isinstance(value, tuple):
            return value
        found: list[tuple[str, int]] = []
        wrong: list[str] = []
        for entry in filter(None, map(str.strip, str(value).split(","))):
            try:
                found.append(Address().convert(entry, param, ctx))
            except click.BadParameter as error:
                wrong.append(error.message)
        if wrong:
            self.fail("; ".join(wrong), param, ctx)
        if not found:
            self.fail(f"{value!r} names no HOST:PORT", param, ctx)
        return tuple(found)


def shown(*addresses: tuple[str, int]) -> str:
    """The addresses in their command-line form."""
    return ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses
    )
