"""Broker incarnations as the metadata log knows them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import ALONE_VERSION, Endpoint, SlotRange
from tidelog.identifiers import FIRST_SLOT, BrokerId, Epoch, Incarnation, Slot

BROKER_ID_MAX = 2**31 - 1
PLAIN_LISTENER = "PLAINTEXT"
"""The listener of a broker that registered none by name."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """An incarnation that is not retired.

    `last_entry`: the newest entry of the metadata log that it wrote (at first its registration).
    `durable_end`: of a fenced one, the least number of durable slots in its WAL (rule C10).
    `rack`: the broker's zone. `version`: its release's. `draining`: a live one gives its
    partitions away and gets no new ones.
    """

    incarnation: Incarnation
    host: str
    port: int
    process: ProcessIdentity
    session_timeout_ms: int
    last_entry: int
    fenced: bool = False
    durable_end: Slot = FIRST_SLOT
    rack: str | None = None
    version: int = ALONE_VERSION
    draining: bool = False
    endpoints: tuple[Endpoint, ...] = ()
    """Its listeners; empty if it has only PLAINTEXT, at `host` and `port`."""

    @property
    def listeners(self) -> tuple[Endpoint, ...]:
        """The addresses of all its listeners for clients."""
        return self.endpoints or (Endpoint(PLAIN_LISTENER, PLAIN_LISTENER, self.host, self.port),)

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address of a listener for clients; None if the broker has no such listener."""
        return next((each for each in self.listeners if each.listener == listener), None)

    @property
    def broker_id(self) -> BrokerId:
        """The configured id, which survives restarts."""
        return self.incarnation.broker_id

    @property
    def epoch(self) -> Epoch:
        """The sequence number of its registration."""
        return self.incarnation.epoch


@dataclass(frozen=True, slots=True)
class RetiredWal:
    """A retired incarnation, whose WAL holds slots below `end_slot` and a seal in it.

    `damaged`: ranges of slots below that were durable and were lost before it was retired.
    """

    incarnation: Incarnation
    end_slot: Slot
    damaged: tuple[SlotRange, ...] = ()
