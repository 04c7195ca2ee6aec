"""When a broker that renews its lease ends itself, because it cannot serve (B2)."""

from __future__ import annotations

from tests.unit.coordinator.cluster.samples import process
from tidelog.coordinator.cluster.log.leases import Lease, WalProgress
from tidelog.coordinator.cluster.membership.lease_watch import Look, Renewal
from tidelog.coordinator.cluster.membership.service_watch import ServiceWatch, Uploads
from tidelog.identifiers import BrokerId, Epoch, Slot

HEARTBEAT = 2.0
SESSION = 9.0


class Stage:
    """One broker whose uploads get stuck, and another broker that it watches."""

    def __init__(self) -> None:
        self.watch = ServiceWatch(SESSION, HEARTBEAT)
        self.now = 100.0
        self.uploads = Uploads(in_flight=3, succeeded=10, last_seconds=0.05)
        self.others_end = 50
        self.others_grow = True
        self.others_are_read = True
        self.renewing = True
        self.renewed_at = self.now

    def look(self) -> bool:
        if self.renewing:
            self.renewed_at = self.now - 0.5
        if self.others_grow:
            self.others_end += 1
        progress = WalProgress(Slot(self.others_end), None)
        lease = Lease(BrokerId(2), Epoch(2), 1, "w", process(), progress)
        leases = {Epoch(2): lease} if self.others_are_read else {}
        renewal = Renewal(self.renewed_at, self.renewed_at)
        return self.watch.cannot_serve(Look(self.now, self.now, leases), self.uploads, renewal)

    def run(self, seconds: float) -> float | None:
        """Look at each heartbeat. Returns when the broker had to end itself, or None."""
        began_at = self.now
        while self.now < began_at + seconds:
            if self.look():
                return self.now - began_at
            self.now += HEARTBEAT
        return None


def test_a_broker_whose_uploads_all_fail_for_a_session_ends_itself() -> None:
    assert Stage().run(60) == 12.0


def test_a_broker_without_uploads_serves() -> None:
    stage = Stage()
    stage.uploads = Uploads(0, 10, 0.05)
    assert stage.run(60) is None


def test_each_success_begins_a_new_session() -> None:
    """The success of a later slot counts too, while the first upload hangs."""
    stage = Stage()
    for succeeded in range(11, 20):
        assert stage.run(SESSION - 1) is None
        stage.uploads = Uploads(3, succeeded, 0.05)


def test_a_broker_does_not_end_while_no_other_broker_can_write_either() -> None:
    stage = Stage()
    stage.others_grow = False
    assert stage.run(60) is None
    # The other broker's WAL grows again, so this broker ends after one more session.
    stage.others_grow = True
    assert stage.run(60) == 10.0


def test_an_idle_cluster_proves_nothing() -> None:
    stage = Stage()
    stage.others_are_read = False
    assert stage.run(60) is None


def test_growth_before_the_stall_proves_nothing() -> None:
    stage = Stage()
    stage.look()
    stage.others_grow = False
    stage.now += HEARTBEAT
    stage.uploads = Uploads(3, 11, 0.05)
    assert stage.run(60) is None


def test_a_lease_that_is_not_renewed_leaves_it_to_the_watchers() -> None:
    stage = Stage()
    stage.renewing = False
    assert stage.run(60) is None


def test_a_pause_of_the_process_restarts_the_count() -> None:
    stage = Stage()
    assert stage.run(SESSION - 1) is None
    stage.now += 2 * HEARTBEAT
    assert stage.run(60) == 12.0


def test_slow_uploads_get_more_time() -> None:
    """A loaded network slows each upload a little more, which is no reason to end."""
    stage = Stage()
    stage.uploads = Uploads(3, 10, 5.0)
    assert stage.run(60) == 22.0
