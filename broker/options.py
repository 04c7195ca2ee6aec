"""The identity and the settings of the broker of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.identifiers import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The operator's choices, and the system's facts about the process."""

    settings: BrokerSettings
    broker_id: BrokerId | None
    """None: the lowest free id."""
    listen: tuple[str, int] | None
    """The only listener's address, unless `listeners` is set. None: the first free port on
    loopback, from Kafka's default port on."""
    advertise: tuple[str, int] | None = None
    """The address for clients; None: the listening address."""
    own_host: str = ""
    """The machine's name: the address for clients of a listener on all interfaces."""
    process: ProcessIdentity
    is_running: Callable[[ProcessIdentity], bool | None]
    """Whether a process runs; None if this machine cannot tell."""
    descriptors_max: int | None = None
    """The process's limit of file descriptors; None: no limit."""
