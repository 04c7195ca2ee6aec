"""Which broker a process is to run, and with what settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.identifiers import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """What the operator asked for, and what the system says of the process."""

    settings: BrokerSettings
    broker_id: BrokerId
    listen: tuple[str, int]
    advertise: tuple[str, int] | None = None
    """What clients are told; None: the address that the broker listens on."""
    process: ProcessIdentity
    is_running: Callable[[ProcessIdentity], bool | None]
    """Whether a process runs; None where this machine cannot tell."""
    descriptors_max: int | None = None
    """How many file descriptors the process may have; None: any number."""
