"""The rule on outages notices a fence for which the store's outage is the only reason."""

from __future__ import annotations

from tests.simulation.rules.outage_watch import OutageWatch
from tests.simulation.world.store import PutOutage
from tests.unit.coordinator.cluster.samples import after, cluster, registered
from tidelog.coordinator.cluster.log.leases import lease_key
from tidelog.coordinator.cluster.records.records import BrokerFenced, Record
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.identifiers import BrokerId, Epoch

SETTINGS = ClusterSettings(session_timeout_ms=9000, heartbeat_interval_ms=2000)
FENCE = BrokerFenced(Epoch(2))


def outage(seconds: float = 20.0, renewed_at: float = 99.0) -> PutOutage:
    """An outage that begins at 100 s."""
    return PutOutage(100.0, 100.0 + seconds, {lease_key(BrokerId(2)): renewed_at})


def is_wrong(found: PutOutage, sent_at: float, *records: Record, author: int | None = 1) -> bool:
    state = after(cluster(1, 2, 3), author, *records)
    watch = OutageWatch(SETTINGS)
    wrong = watch.fenced(state.sequence, records, state, [found], sent_at)
    assert [(each.epoch, each.broker_id) for each in wrong] in ([], [(2, 2)])
    return bool(wrong)


def test_a_fence_within_a_session_after_an_outage_is_noticed() -> None:
    assert is_wrong(outage(), 121.0, FENCE)
    assert is_wrong(outage(), 110.0, FENCE), "during the outage as well"
    assert not is_wrong(outage(), 130.0, FENCE), "the broker was silent for a session since"
    assert not is_wrong(outage(), 99.0, FENCE), "the fence was sent before"


def test_a_fence_that_the_outage_does_not_explain_is_no_violation() -> None:
    assert not is_wrong(outage(renewed_at=95.0), 121.0, FENCE), "the broker was silent before"
    assert not is_wrong(outage(seconds=5.0), 106.0, FENCE), "too short to restart a count"
    assert not is_wrong(PutOutage(100.0, 120.0, {}), 121.0, FENCE), "its lease was never written"
    assert not is_wrong(outage(), 121.0, FENCE, author=2), "the broker fences itself"
    assert not is_wrong(outage(), 121.0, FENCE, registered(2), author=None), "its successor does"
