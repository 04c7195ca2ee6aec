"""What can be wrong with a message or a frame."""

from __future__ import annotations

from tidelog.errors import TidelogError


class MalformedMessage(TidelogError):
    """Bytes that are not the message or frame that they should be. Nothing of them was acted
    upon."""


class UnsupportedVersion(TidelogError):
    """A version of a message that these schemas do not know. Nothing was read or written."""

    def __init__(self, message: str, version: int, versions: range) -> None:
        super().__init__(
            f"{message} has versions {versions.start} to {versions.stop - 1}, not {version}"
        )
        self.version = version


class UnknownApi(TidelogError):
    """A request with a key that is not registered; the connection cannot be understood further."""

    def __init__(self, api_key: int) -> None:
        super().__init__(f"no API is registered under key {api_key}")
        self.api_key = api_key


class UnencodableMessage(TidelogError):
    """A message whose fields do not fit its schema: a programmer's error. Nothing was sent."""
