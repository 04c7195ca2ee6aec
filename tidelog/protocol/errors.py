"""Errors of messages and frames."""

from __future__ import annotations

from tidelog.errors import TidelogError


class MalformedMessage(TidelogError):
    """The bytes are not a valid message or frame. They had no effect."""


class UnsupportedVersion(TidelogError):
    """The schemas lack this version of a message. Nothing was read or written."""

    def __init__(self, message: str, version: int, versions: range) -> None:
        super().__init__(
            f"{message} has versions {versions.start} to {versions.stop - 1}, not {version}"
        )
        self.version = version


class UnknownApi(TidelogError):
    """A request has an unregistered key; the rest of the connection is unreadable."""

    def __init__(self, api_key: int) -> None:
        super().__init__(f"no API is registered under key {api_key}")
        self.api_key = api_key


class UnencodableMessage(TidelogError):
    """A message's fields do not fit its schema: a programmer's error. Nothing was sent."""
