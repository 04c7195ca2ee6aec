"""The processes of this machine: the own one, and whether another one still runs."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity

_PROC = Path("/proc")
# Fields of /proc/<pid>/stat, counted from the state, which follows the command in parentheses.
_STATE_FIELD = 0
_START_TIME_FIELD = 19
_PARTS_MAX = 1_000_000
_DEAD_STATES = frozenset("ZXx")


def current() -> ProcessIdentity:
    """The calling process."""
    pid = os.getpid()
    host = socket.gethostname()
    if sys.platform != "linux":
        return ProcessIdentity(host, "", "", pid, 0)
    try:
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = str((_PROC / "self/ns/pid").readlink())
        _, start_time = _state_and_start(pid)
    except (OSError, ValueError, IndexError):
        # A sandbox without /proc: no other process can look this one up later.
        return ProcessIdentity(host, "", "", pid, 0)
    return ProcessIdentity(host, boot_id, namespace, pid, start_time)


def part_of(process: ProcessIdentity, number: int) -> ProcessIdentity:
    """One of several brokers of a process, by its number from 1 on.

    Its start time is negative. Other processes take it for running as long as the process runs.
    """
    return replace(process, start_time=-(process.start_time * _PARTS_MAX + number))


def is_running(identity: ProcessIdentity) -> bool | None:
    """Whether the process still runs; None if this process cannot know.

    A killed process that its parent has not yet reaped does not run.
    """
    if not current().shares_processes_with(identity) or identity.pid <= 0:
        return None
    try:
        os.kill(identity.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists; /proc may tell whether it is the same one
    try:
        state, start_time = _state_and_start(identity.pid)
    except (OSError, ValueError, IndexError):
        return None  # hidden from this user, or gone between the two calls
    wanted = identity.start_time
    if wanted < 0:
        wanted = -wanted // _PARTS_MAX
    return start_time == wanted and state not in _DEAD_STATES


def _state_and_start(pid: int) -> tuple[str, int]:
    # The command may hold spaces and parentheses, so the fields are counted from the last one.
    stat = (_PROC / str(pid) / "stat").read_text()
    fields = stat[stat.rindex(")") + 1 :].split()
    return fields[_STATE_FIELD], int(fields[_START_TIME_FIELD])
