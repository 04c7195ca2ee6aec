"""The processes of this machine, as Linux lists them in /proc. Each may end during a look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A process, as the kernel describes it."""

    pid: int
    parent: int
    state: str
    session: int


def find(pid: int) -> Found | None:
    """The process, or None if it does not exist or has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process's name comes before, and may hold any character, including brackets.
    state, parent, _, session = text.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else Found(pid, int(parent), state, int(session))


def find_all() -> Iterator[Found]:
    """All living processes, including stopped ones."""
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and (found := find(int(each.name))) is not None:
            yield found


def command_of(pid: int) -> list[str]:
    """The command line of the process, or no words if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def children_with(parent: int, word: str) -> list[int]:
    """The children of a process whose command contains a word."""
    return [
        each.pid for each in find_all() if each.parent == parent and word in command_of(each.pid)
    ]
