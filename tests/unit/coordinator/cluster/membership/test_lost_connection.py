"""When a broken connection fences a broker at once, and when the lease decides (B2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.coordinator.cluster.samples import after, cluster, incarnation
from tidelog.coordinator.cluster.membership.lease_watch import Renewal
from tidelog.coordinator.cluster.membership.lost_connection import (
    ConnectionVerdicts,
    LostConnection,
)
from tidelog.coordinator.cluster.records.records import BrokerFenced, LeaseResumed
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Slot

THREE = cluster(1, 2, 3)
RENEWED = Renewal(started_at=100.05, answered_at=100.1)
LOST = LostConnection(
    to=THREE.brokers[Epoch(2)],
    began_at=100.0,
    refused_at=(100.01, 100.12),
    last_entry=2,
    durable_end=Slot(7),
    answered=frozenset([Epoch(3)]),
)


def verdicts() -> ConnectionVerdicts:
    return ConnectionVerdicts(incarnation(THREE, 1))


def test_a_broker_that_broke_off_and_refuses_is_fenced_at_once() -> None:
    verdict = verdicts().verdict(THREE, LOST, RENEWED, 100.2)
    assert verdict is not None
    assert verdict.records(THREE) == (BrokerFenced(Epoch(2), Slot(7)),)


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(replace(LOST, refused_at=(100.01,)), id="one refusal"),
        pytest.param(replace(LOST, refused_at=(100.01, 100.1)), id="refusals too close together"),
        pytest.param(replace(LOST, refused_at=(99.9, 100.1)), id="an earlier refusal"),
        pytest.param(replace(LOST, answered=frozenset()), id="no other answers"),
        pytest.param(replace(LOST, answered=frozenset([Epoch(2)])), id="only itself answered"),
    ],
)
def test_a_missing_condition_leaves_it_to_the_lease(lost: LostConnection) -> None:
    assert verdicts().verdict(THREE, lost, RENEWED, 100.2) is None


@pytest.mark.parametrize("renewal", [None, Renewal(99.99, 100.1)])
def test_a_lost_connection_is_no_verdict_without_a_lease_put_since_then(
    renewal: Renewal | None,
) -> None:
    """The broker's own PUT began before, so it may have lost the store since."""
    assert verdicts().verdict(THREE, LOST, renewal, 100.2) is None


def test_one_of_two_brokers_needs_no_witness_against_the_other() -> None:
    two = cluster(1, 2)
    alone = replace(LOST, to=two.brokers[Epoch(2)], answered=frozenset())
    verdict = ConnectionVerdicts(incarnation(two, 1)).verdict(two, alone, RENEWED, 100.2)
    assert verdict is not None


def test_a_broker_fences_one_other_in_this_way_within_a_session() -> None:
    judge = verdicts()
    judge.fenced(100.2)
    assert judge.verdict(THREE, LOST, RENEWED, 109.1) is None
    assert judge.verdict(THREE, LOST, RENEWED, 109.3) is not None


def test_a_broker_that_writes_an_entry_since_is_not_fenced() -> None:
    verdict = verdicts().verdict(THREE, LOST, RENEWED, 100.2)
    assert verdict is not None
    moved = after(THREE, 2, LeaseResumed(Epoch(2)))
    assert verdict.records(moved) == ()


@pytest.mark.parametrize("fenced", [2, 3])
def test_a_fence_by_another_broker_comes_first(fenced: int) -> None:
    verdict = verdicts().verdict(THREE, LOST, RENEWED, 100.2)
    assert verdict is not None
    assert verdict.records(after(THREE, 1, BrokerFenced(Epoch(fenced)))) == ()


def test_a_broker_that_is_fenced_already_is_not_judged() -> None:
    fenced: ClusterState = after(THREE, 3, BrokerFenced(Epoch(2)))
    assert verdicts().verdict(fenced, LOST, RENEWED, 100.2) is None
