"""The faults of a running broker, for the health endpoint and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.membership import Membership
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.roll.roller import Roller
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.errors import CorruptObject, TidelogError, some_of

NAMES_IN_HEALTH = 20
"""Partitions named for each fault; the metrics name all."""


@dataclass(frozen=True, slots=True)
class Health:
    """Collects the faults of the broker's parts. All methods are callable from any thread."""

    membership: Membership
    partitions: PartitionRegistry
    coordinators: Coordinators
    roller: Roller
    read_faults: FaultLog

    def obstacles(self) -> Sequence[str]:
        """Why the broker cannot serve any partition, in words; empty if it can."""
        if self.membership.may_serve_reads():
            return ()
        return ("the lease could not be renewed in time; reads are not answered",)

    def faults(self) -> Sequence[str]:
        """The present faults in words; empty for a healthy broker."""
        found = list(self.obstacles())
        unserved: dict[str, dict[str, None]] = {}
        for partition, fault in (*self.unserved(), *self.coordinators.faults()):
            unserved.setdefault(str(fault), {})[partition] = None
        found += [
            f"{fault}; not served: {some_of(list(names), NAMES_IN_HEALTH)}"
            for fault, names in unserved.items()
        ]
        found += map(str, self.roller.faults())
        return found

    def unserved(self) -> list[tuple[str, CorruptObject]]:
        """Partitions that cannot be served at all or in full, each with the damaged object."""
        faulty: list[tuple[str, TidelogError | None]]
        faulty = [(str(each), each.fault) for each in self.partitions.faulty]
        faulty += self.coordinators.faults()
        found = [(name, fault) for name, fault in faulty if isinstance(fault, CorruptObject)]
        return [*found, *self.read_faults.recent_damage()]
