"""Addresses as text: `HOST:PORT`, in which an IPv6 host is in brackets. Pure."""

from __future__ import annotations


def parse_address(text: str) -> tuple[str, int]:
    """The host and the port. Raises ValueError, which repeats a text that is not an address."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
