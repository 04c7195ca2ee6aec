"""The rule on releases notices a record that a live broker cannot read."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.rules.version_watch import unreadable_to
from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    SHARING_VERSION,
    BrokerFenced,
    DrainChanged,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch


def test_a_record_that_a_live_broker_cannot_read_is_noticed() -> None:
    state = after(ClusterState(), None, CLUSTER)
    state = after(state, None, replace(registered(1), version=BROKER_VERSION))
    state = after(state, None, replace(registered(2), version=SHARING_VERSION))
    old, new = state.live_epochs.values()
    if state.brokers[old].version != SHARING_VERSION:
        old, new = new, old
    drain = DrainChanged(Epoch(new), True)
    assert unreadable_to([drain], state) == [old]
    assert unreadable_to([BrokerFenced(new)], state) == []
    assert unreadable_to([drain], after(state, new, BrokerFenced(old))) == []
