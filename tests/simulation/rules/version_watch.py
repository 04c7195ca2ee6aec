"""A rule on releases: a record is written only while each live broker can read it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.cluster import Environment
from tidelog.broker.running import RunningBroker
from tidelog.coordinator.cluster.records.records import Record
from tidelog.coordinator.cluster.state.features import VERSION_OF_RECORD
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch


def unreadable_to(records: Sequence[Record], state: ClusterState) -> list[Epoch]:
    """The live brokers whose release cannot read these records, which `state` has applied."""
    version = max((VERSION_OF_RECORD.get(type(record), 0) for record in records), default=0)
    return [info.epoch for info in state.live_brokers() if info.version < version]


def watch_versions(broker: RunningBroker, environment: Environment) -> None:
    """Note a violation for each such entry that the broker reads."""
    metadata = broker.membership.metadata

    def follow(sequence: int, records: Sequence[Record]) -> None:
        for epoch in unreadable_to(records, metadata.state):
            environment.cluster.violations.append(
                f"entry {sequence} holds a record that live incarnation {epoch} cannot read"
            )

    metadata.subscribe(follow)
