"""What is wrong with a running broker: for the health endpoint and the metrics."""

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
"""Of partitions, for each fault; the metrics have them all."""


@dataclass(frozen=True, slots=True)
class Health:
    """Asks the parts that know of faults. Its methods may be called from any thread."""

    membership: Membership
    partitions: PartitionRegistry
    coordinators: Coordinators
    roller: Roller
    read_faults: FaultLog

    def faults(self) -> Sequence[str]:
        """What is wrong, in words; empty if nothing is."""
        found = []
        if not self.membership.may_serve_reads():
            found.append("the lease could not be renewed in time; reads are not answered")
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
        """Partitions that cannot be served, or not in full, by name, each with the damaged object
        that is to blame."""
        faulty: list[tuple[str, TidelogError | None]]
        faulty = [(str(each), each.fault) for each in self.partitions.faulty]
        faulty += self.coordinators.faults()
        found = [(name, fault) for name, fault in faulty if isinstance(fault, CorruptObject)]
        return [*found, *self.read_faults.standing()]
