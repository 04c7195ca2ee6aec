"""Each rule on the metadata log finds its own violations, and no others."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.crowd.log_rules import LogRules
from tests.unit.coordinator.cluster.samples import after, cluster, process, registered
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import BrokerFenced, DrainChanged
from tidelog.identifiers import Epoch


def rules(*may_be_fenced: ProcessIdentity) -> LogRules:
    return LogRules(lambda each: each in may_be_fenced)


def test_brokers_with_equal_states_at_an_entry_agree() -> None:
    judge = rules()
    judge.joined("one", cluster(1, 2))
    judge.joined("two", cluster(1, 2))
    assert (judge.violations, judge.compared) == ([], 1)


def test_a_broker_that_has_another_state_at_an_entry_is_named() -> None:
    judge = rules()
    judge.joined("one", cluster(1, 2))
    judge.joined("two", replace(cluster(1, 2), level=9))
    (found,) = judge.violations
    assert "at entry 2 the states of one and two differ in ['level']" in found


def test_a_fence_of_a_process_that_lives_unharmed_is_found_once() -> None:
    fence = BrokerFenced(Epoch(1))
    before = cluster(1, 2)
    state = after(before, 2, fence)
    for dead, found in (((process(1),), 0), ((), 1)):
        judge = rules(*dead)
        judge.joined("two", before)
        judge.applied("two", state.sequence, (fence,), state)
        judge.applied("one", state.sequence, (fence,), state)
        assert (len(judge.violations), judge.fences) == (found, 1)


def test_a_broker_that_registered_later_is_known_too() -> None:
    joining, fence = registered(3), BrokerFenced(Epoch(3))
    judge = rules(process(3))
    before = cluster(1, 2)
    judge.joined("two", before)
    joined = after(before, None, joining)
    judge.applied("two", joined.sequence, (joining,), joined)
    fenced = after(joined, 2, fence)
    judge.applied("two", fenced.sequence, (fence,), fenced)
    assert (judge.violations, judge.fences) == ([], 1)


def test_a_record_that_a_live_broker_cannot_read_is_found() -> None:
    judge = rules()
    state = cluster(1, 2)
    judge.applied("one", state.sequence, (DrainChanged(Epoch(1), True),), state)
    (found,) = judge.violations
    assert "DrainChanged, which brokers [1, 2] cannot read" in found
