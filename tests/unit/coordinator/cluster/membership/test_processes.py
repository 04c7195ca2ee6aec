"""Whether a process still runs, according to the real machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tidelog.coordinator.cluster.membership.processes import current, is_running
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of other processes")


def identity_of(pid: int) -> ProcessIdentity:
    """The identity that the process itself would report. Field 22 of /proc/<pid>/stat is its start
    time."""
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - as procps reads it
        fields = stat.read().rpartition(")")[2].split()
    return replace(current(), pid=pid, start_time=int(fields[19]))


@linux
def test_we_run() -> None:
    me = current()
    assert me.pid == os.getpid()
    assert me == identity_of(os.getpid())
    assert is_running(me) is True


@linux
def test_a_killed_process_does_not_run_even_before_its_parent_has_waited() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = identity_of(child.pid)
        assert is_running(identity) is True
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_running(identity) is False
        child.wait()
        assert is_running(identity) is False


@linux
def test_another_process_with_the_same_pid_does_not_count_as_running() -> None:
    assert is_running(replace(current(), start_time=current().start_time - 1)) is False


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "elsewhere.example"},
        {"boot_id": "another boot"},
        {"pid_namespace": "pid:[1]"},
        {"boot_id": ""},
        {"pid": 0},
    ],
    ids=str,
)
def test_processes_of_another_machine_are_unknown(elsewhere: dict[str, str]) -> None:
    assert is_running(replace(current(), **elsewhere)) is None


def test_a_machine_that_tells_nothing_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    me = current()
    assert (me.pid, me.boot_id, me.start_time) == (os.getpid(), "", 0)
    assert is_running(me) is None
