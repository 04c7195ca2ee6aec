"""Identifies a process on a machine, so that a restart can tell whether its predecessor is gone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process. If the system does not tell, boot id and namespace are empty and the start time is
    0.

    `start_time` is in clock ticks since the machine's boot. With the pid it identifies one process,
    even if the pid is reused.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_time: int

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    def shares_processes_with(self, other: ProcessIdentity) -> bool:
        """Whether both certainly see the same process table."""
        return (
            self.boot_id != ""
            and self.pid_namespace != ""
            and (self.host, self.boot_id, self.pid_namespace)
            == (other.host, other.boot_id, other.pid_namespace)
        )
