"""Clients of confluent-kafka that a test puts in the place of the SDK's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import pytest

ClientT = TypeVar("ClientT")


def replaced(
    monkeypatch: pytest.MonkeyPatch,
    of: Literal["consumer", "sender"],
    client: Callable[[dict[str, Any]], ClientT],
) -> list[ClientT]:
    """The clients that consumers or senders make from now on, by their settings."""
    made: list[ClientT] = []

    def make(_: object, settings: dict[str, Any]) -> ClientT:
        made.append(client(settings))
        return made[-1]

    monkeypatch.setattr(f"tidelog.sdk.{of}.made", make)
    return made
