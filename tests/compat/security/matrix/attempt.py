"""A client's task, and its report. Programs read and write both as JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

SECONDS_MAX = 60
REFUSED_SECONDS_MAX = 5
"""Clients that would retry for ever give up after this time."""


@dataclass(frozen=True)
class Attempt:
    """One way to connect. Empty texts are not given to the client."""

    name: str
    bootstrap: str
    topic: str
    authority: str
    """The file with the certificates that the client trusts."""
    certificate: str = ""
    """The file with the client's own key and certificate."""
    mechanism: str = ""
    """With a mechanism the protocol is SASL_SSL, without one SSL."""
    username: str = ""
    password: str = ""
    token: str = ""
    is_refused: bool = False
    """Whether the client must fail. Such an attempt only connects."""

    @property
    def values(self) -> list[str]:
        """The produced values: one record alone, and one in a transaction."""
        return [self.name, f"{self.name} in a transaction"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt."""

    consumed: tuple[str, ...] = ()
    """The values that a member of a group has read, from committed transactions only."""
    error: str = ""
    """The class and the text of the error that the client's user gets."""


class SecuredClient(Protocol):
    """An unmodified client library or program."""

    name: str
    mechanisms: frozenset[str]
    """The mechanisms of SASL that the client has."""

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """The outcome of each attempt.

        It produces each of `values`, the second one in a transaction, and reads them in a group
        named after the attempt.
        """
        ...


class _Lines(logging.Handler):
    """The messages of a logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """The warnings of a library whose errors lack the reason."""
    logger, handler = logging.getLogger(name), _Lines()
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
