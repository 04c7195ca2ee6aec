"""A small cluster to try records on: broker 1 at epoch 1, broker 2 at epoch 2, and two topics."""

from __future__ import annotations

from uuid import UUID

from tidelog.coordinator.cluster.records.bucket_format import new_cluster
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    IncarnationRetired,
    MetadataEntry,
    Record,
    Succession,
    TopicCreated,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot, TopicPartition

WRITER = bytes(range(16))
CLUSTER = new_cluster(UUID(int=7))
FLIGHTS = UUID("00000000-0000-4000-8000-00000000000a")
DELAYS = UUID("00000000-0000-4000-8000-00000000000b")
NOWHERE = UUID("00000000-0000-4000-8000-0000000000ff")


def process(pid: int = 100, host: str = "harbour") -> ProcessIdentity:
    """A process of one machine."""
    return ProcessIdentity(host, "boot", "pid:[1]", pid, start_time=5000 + pid)


def registered(broker_id: int, port: int = 9092) -> BrokerRegistered:
    """The registration of a broker."""
    return BrokerRegistered(BrokerId(broker_id), f"b{broker_id}.example", port, process(broker_id))


def after(state: ClusterState, author: int | None, *records: Record) -> ClusterState:
    """The state after one more entry."""
    return state.apply(
        MetadataEntry(
            state.sequence + 1, WRITER, 1000, None if author is None else Epoch(author), records
        )
    )


def cluster(*broker_ids: int) -> ClusterState:
    """Live brokers: the first has epoch 1, the next epoch 2, and so on."""
    state = after(ClusterState(), None, CLUSTER)
    for broker_id in broker_ids:
        state = after(state, None, registered(broker_id))
    return state


def incarnation(state: ClusterState, broker_id: int) -> Incarnation:
    """The live incarnation of a broker id."""
    return Incarnation(BrokerId(broker_id), state.live_epochs[BrokerId(broker_id)])


def harbour() -> ClusterState:
    """Partitions 0 and 2 of flights, and delays, belong to broker 1. Partition 1 of flights belongs
    to broker 2."""
    state = after(ClusterState(), None, CLUSTER)
    state = after(state, None, registered(1))
    state = after(state, None, registered(2))
    flights = TopicCreated(
        FLIGHTS, "flights", (Epoch(1), Epoch(2), Epoch(1)), {"retention.ms": "5"}
    )
    return after(state, 1, flights, TopicCreated(DELAYS, "delays.late", (Epoch(1),), internal=True))


def fenced() -> ClusterState:
    """The harbour after broker 1 was fenced by broker 2."""
    return after(harbour(), 2, BrokerFenced(Epoch(1)))


RETIRED = IncarnationRetired(
    Epoch(1),
    Slot(17),
    (Succession(FLIGHTS, Epoch(2), (0, 2)), Succession(DELAYS, Epoch(2), (0,))),
)
"""The record that the cluster `fenced` lacks."""


def flights(partition: int) -> TopicPartition:
    """A partition of the topic flights."""
    return TopicPartition(FLIGHTS, partition)
