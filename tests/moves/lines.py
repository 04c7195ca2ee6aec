"""The lines by which a client's program reports what its application saw.

    ready               the program works
    sent PARTITION N    number N was acknowledged
    got TOPIC PARTITION OFFSET N
    committed COUNT     a transaction moved COUNT records
    aborted COUNT       a transaction of COUNT records was aborted on purpose
    note TEXT           the client's own information, which asks nothing of the application
    error TEXT          an error reached the application

A program ends cleanly after its standard input ends.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

SEND_SECONDS = 0.01
"""The pause between two records of a producer."""
END_SECONDS_MAX = 60.0
ABORTED_EVERY = 5
RECORDS_MAX = 200
"""Of a transaction: more than arrive while a slow one ends, or a backlog would grow for minutes."""

_one_line = threading.Lock()


def say(*words: object) -> None:
    """Print one line for the judge."""
    with _one_line:
        print(*words, flush=True)


def end_of_input() -> threading.Event:
    """An event that is set when the standard input ends."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


def run(roles: dict[str, Callable[..., None]]) -> NoReturn:
    """Run `ROLE ARGUMENT...` of the command line; an exception is an error of the application."""
    role, *arguments = sys.argv[1:]
    try:
        roles[role](*arguments)
    except Exception as error:  # noqa: BLE001 - each is what an application would have seen
        traceback.print_exc()
        say("error", repr(error).replace("\n", " "))
        sys.exit(1)
    sys.exit(0)
