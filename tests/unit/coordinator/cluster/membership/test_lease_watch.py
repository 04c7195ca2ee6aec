"""Which brokers a watcher takes for dead: each condition of rule B2, and the mistake that it
prevents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from tests.unit.coordinator.cluster.samples import after, cluster, incarnation, process, registered
from tidelog.coordinator.cluster.log.leases import Lease, WalProgress
from tidelog.coordinator.cluster.membership.lease_watch import (
    LeaseWatch,
    Look,
    Renewal,
    Verdict,
    ring_after,
)
from tidelog.coordinator.cluster.records.records import BrokerFenced, LeaseResumed
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch, Slot

HEARTBEAT = 2.0
SESSION = 9.0


class Stage:
    """One watcher, and brokers that renew their leases or are silent, on one monotonic clock.

    Without further calls there are no faults: looks come when the watch wants them, and the
    watcher's own lease is renewed at each heartbeat.
    """

    def __init__(self, state: ClusterState, me: int, draw: float = 0.0) -> None:
        self.state = state
        self.watch = LeaseWatch(incarnation(state, me), HEARTBEAT)
        self.me = me
        self.now = 100.0
        self.silent: dict[int, float] = {}
        self.unreadable: set[int] = set()
        self.renewing = True
        self.draw = draw
        self.reads: list[tuple[int, ...]] = []
        self.renewed_at = self.now
        self.fences: list[tuple[int, float]] = []

    def silence(self, *broker_ids: int) -> None:
        """These brokers stop renewing their leases."""
        self.silent |= dict.fromkeys(broker_ids, self.now)

    def come_back(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            del self.silent[broker_id]

    def lease(self, broker_id: int) -> Lease:
        renewed_at = self.silent.get(broker_id, self.now)
        counter = int(renewed_at / HEARTBEAT)
        epoch = self.state.live_epochs[BrokerId(broker_id)]
        progress = WalProgress(Slot(broker_id), None)
        return Lease(BrokerId(broker_id), epoch, counter, "w", process(), progress)

    def look(self, took: float = 0.01) -> Verdict | None:
        """Make the watcher look now. The clock then stands at the time of its answer."""
        asked_at = self.now
        if self.renewing:
            self.renewed_at = max(self.renewed_at, asked_at - asked_at % HEARTBEAT)
        watched = self.watch.watched(self.state)
        self.reads.append(tuple(info.broker_id for info in watched))
        leases: Mapping[Epoch, Lease | None] = {
            info.epoch: self.lease(info.broker_id)
            for info in watched
            if info.broker_id not in self.unreadable
        }
        self.now += took
        look = Look(asked_at, self.now, leases)
        renewal = Renewal(self.renewed_at, self.renewed_at + 0.01)
        verdict = self.watch.observed(
            self.state, look, renewal, lambda low, high: low + self.draw * (high - low)
        )
        self.next_read_at = self.watch.next_read_at(look)
        return verdict

    def run(self, seconds: float, *, apply: bool = True) -> list[int]:
        """Look as often as the watch wants. Returns the ids of the brokers that it fences."""
        end = self.now + seconds
        fenced: list[int] = []
        while self.now < end:
            verdict = self.look()
            if verdict is not None and verdict.holds(self.state):
                fenced.append(verdict.dead.broker_id)
                self.fences.append((verdict.dead.broker_id, self.now))
                if not apply:
                    return fenced
                self.append(self.me, *verdict.records(self.state))
            self.now = max(self.now, self.next_read_at)
        return fenced

    def append(self, author: int, *records: BrokerFenced | LeaseResumed) -> None:
        """An entry of the metadata log by a live broker."""
        epoch = self.state.live_epochs[BrokerId(author)]
        self.state = after(self.state, epoch, *records)

    def epoch(self, broker_id: int) -> Epoch:
        return self.state.live_epochs[BrokerId(broker_id)]


# --- the ring ---


def watched_ids(state: ClusterState, me: int) -> list[int]:
    watch = LeaseWatch(incarnation(state, me), HEARTBEAT)
    return [int(info.broker_id) for info in watch.watched(state)]


@pytest.mark.parametrize(
    ("ids", "me", "watched"),
    [
        ([7], 7, []),
        ([7, 9], 9, [7]),
        ([7, 9], 7, [9]),
        ([1, 2, 3], 2, [3, 1]),
        ([1, 2, 3, 4, 5], 4, [5, 1, 2]),
        (range(100), 98, [99, 0, 1]),
    ],
)
def test_a_broker_watches_the_next_three_ids(
    ids: Iterable[int], me: int, watched: list[int]
) -> None:
    assert watched_ids(cluster(*ids), me) == watched


@pytest.mark.parametrize("brokers", [2, 3, 4, 5, 100])
def test_each_broker_is_watched_by_three_others_at_most_and_one_at_least(brokers: int) -> None:
    state = cluster(*range(brokers))
    seen = [each for me in range(brokers) for each in watched_ids(state, me)]
    assert {seen.count(each) for each in range(brokers)} == {min(3, brokers - 1)}


def test_a_fenced_broker_leaves_the_ring_and_a_new_broker_enters_the_ring() -> None:
    state = cluster(1, 2, 3, 4, 5)
    state = after(state, 1, BrokerFenced(Epoch(2)))
    assert watched_ids(state, 1) == [3, 4, 5]
    state = after(state, None, registered(2))
    assert watched_ids(state, 1) == [2, 3, 4]
    assert [info.broker_id for info in ring_after(incarnation(state, 4), state)] == [5, 1, 2, 3]


def test_a_watcher_without_deaths_reads_three_leases_a_heartbeat() -> None:
    stage = Stage(cluster(*range(100)), me=98)
    assert stage.run(60) == []
    assert len(stage.reads) <= 60 / HEARTBEAT + 1
    assert set(stage.reads) == {(99, 0, 1)}


# --- one death ---


def test_a_silent_broker_is_fenced_once_with_the_durable_end_of_its_lease() -> None:
    stage = Stage(cluster(1, 2, 3), me=1)
    stage.run(20)
    stage.silence(2)
    died_at = stage.now
    assert stage.run(60) == [2]
    assert SESSION <= stage.fences[0][1] - died_at <= SESSION + 3 * HEARTBEAT
    assert not stage.state.is_live(Epoch(2))
    assert stage.state.brokers[Epoch(2)].durable_end == Slot(2)


def test_the_nearest_watcher_comes_first_and_the_others_later() -> None:
    fenced_after = {}
    for me in (3, 2, 1):
        stage = Stage(cluster(1, 2, 3, 4, 5), me, draw=0.5)
        stage.silence(4)
        assert stage.run(30) == [4]
        fenced_after[me] = stage.fences[0][1] - 100.0
    assert fenced_after[3] < fenced_after[2] < fenced_after[1] < SESSION + 6 * HEARTBEAT


def test_a_silent_neighbour_does_not_count_as_nearer() -> None:
    """The nearest watcher of broker 3 is dead too, so broker 1 does not wait for it."""
    stage = Stage(cluster(1, 2, 3), me=1)
    stage.silence(2, 3)
    assert stage.run(30) == [2, 3]
    (_, first), (_, second) = stage.fences
    assert second - first < HEARTBEAT / 2


def test_a_broker_without_a_lease_is_dead_too() -> None:
    """The broker died between its registration and its first renewal."""
    state = cluster(1, 2)
    watch = LeaseWatch(incarnation(state, 1), HEARTBEAT)
    verdicts = []
    for n in range(10):
        at = 10 + 2.0 * n
        look = Look(at, at, {Epoch(2): None})
        verdicts.append(watch.observed(state, look, Renewal(at, at), lambda low, _: low))
    assert next(n for n, verdict in enumerate(verdicts) if verdict is not None) == 6


def test_a_lease_of_an_older_incarnation_shows_no_life() -> None:
    state = cluster(1, 2)
    state = after(after(state, 1, BrokerFenced(Epoch(2))), None, registered(2))
    stage = Stage(state, me=1)
    zombie = replace(stage.lease(2), epoch=Epoch(2))
    watch = stage.watch
    fenced = None
    for n in range(8):
        at = 10 + 2.0 * n
        look = Look(at, at, {stage.epoch(2): replace(zombie, counter=n)})
        fenced = watch.observed(state, look, Renewal(at, at), lambda low, _: low)
    assert fenced is not None
    assert fenced.durable_end == 0


# --- protection of living brokers ---


def test_a_broker_that_renews_late_but_in_time_is_not_fenced() -> None:
    stage = Stage(cluster(1, 2), me=1)
    for _ in range(20):
        stage.silence(2)
        assert stage.run(SESSION - HEARTBEAT) == []
        stage.come_back(2)
        assert stage.run(HEARTBEAT) == []


def test_a_broker_that_renews_within_the_last_heartbeat_is_not_fenced() -> None:
    """The watcher finds the broker silent, and its lease changes before the confirming look."""
    stage = Stage(cluster(1, 2), me=1)
    stage.silence(2)
    while not stage.watch.silent:
        assert stage.look() is None
        stage.now = stage.next_read_at
    assert stage.now - 100.0 > SESSION
    stage.come_back(2)
    assert stage.run(30) == []


def test_a_gap_between_looks_restarts_the_count() -> None:
    """The watcher was stalled, perhaps with the whole machine, so the silence proves nothing."""
    stage = Stage(cluster(1, 2), me=1)
    stage.silence(2)
    stage.run(SESSION - 1)
    stage.now += 2 * HEARTBEAT + 0.5
    woke_at = stage.now
    assert stage.run(SESSION) == []
    assert stage.run(20) == [2]
    assert stage.fences[0][1] - woke_at >= SESSION + HEARTBEAT


def test_a_gap_of_two_heartbeats_does_not_restart_the_count() -> None:
    stage = Stage(cluster(1, 2), me=1)
    stage.silence(2)
    stage.look()
    for _ in range(2):
        stage.now += 2 * HEARTBEAT - 0.1
        assert stage.look() is None
    stage.now += HEARTBEAT
    assert stage.look() is None
    stage.now += HEARTBEAT
    assert stage.look() is not None


def test_reads_that_fail_are_no_looks() -> None:
    stage = Stage(cluster(1, 2), me=1)
    stage.silence(2)
    for _ in range(5):
        stage.unreadable.add(2)
        assert stage.run(2.5 * HEARTBEAT) == []
        stage.unreadable.clear()
        assert stage.run(SESSION - HEARTBEAT) == []
    assert stage.run(20) == [2]


def test_a_lease_that_cannot_be_read_at_the_turn_is_not_fenced() -> None:
    """One of two silent brokers has its turn, but the watcher's read of its lease fails just
    then."""
    stage = Stage(cluster(1, 2, 3), me=1, draw=1.0)
    stage.silence(2, 3)
    # The turn comes one heartbeat after the confirmation, which comes one after the judgement.
    assert stage.run(SESSION + 2 * HEARTBEAT - 0.1) == []
    stage.unreadable |= {2, 3}
    assert stage.run(HEARTBEAT / 2) == []
    stage.unreadable.clear()
    assert stage.run(HEARTBEAT) == [2, 3]


def test_without_a_lease_put_since_the_judgement_no_broker_is_fenced() -> None:
    """PUTs have just begun to fail for all brokers, while looks succeed: the silence is the
    store's."""
    stage = Stage(cluster(1, 2), me=1)
    stage.silence(2)
    while not stage.watch.silent:
        stage.look()
        stage.now = stage.next_read_at
    stage.renewing = False
    # The last PUT is recent enough, but began before the judgement.
    stage.renewed_at = stage.now - 0.1 - HEARTBEAT
    stage.now += HEARTBEAT / 2
    for _ in range(3):
        assert stage.look() is None
        stage.now += 0.3
    stage.renewing = True
    assert stage.run(3 * HEARTBEAT) == [2]


def test_without_any_lease_put_no_broker_is_fenced() -> None:
    state = cluster(1, 2)
    watch = LeaseWatch(incarnation(state, 1), HEARTBEAT)
    for n in range(30):
        at = 10 + 2.0 * n
        assert (
            watch.observed(state, Look(at, at, {Epoch(2): None}), None, lambda low, _: low) is None
        )


@pytest.mark.parametrize("seconds", [12, 30, 300])
def test_an_outage_in_which_all_brokers_look_dead_ends_without_a_fence(seconds: float) -> None:
    """No PUT succeeds, but GETs do. Afterwards the other brokers renew a little later than the
    watcher."""
    stage = Stage(cluster(1, 2, 3, 4, 5), me=1)
    stage.run(20)
    stage.silence(2, 3, 4, 5)
    stage.renewing = False
    assert stage.run(seconds) == []
    stage.renewing = True
    assert stage.run(SESSION - HEARTBEAT) == []
    stage.come_back(2, 3, 4, 5)
    assert stage.run(60) == []


def test_a_lease_that_was_resumed_in_the_log_starts_the_count_anew() -> None:
    stage = Stage(cluster(1, 2), me=1)
    stage.silence(2)
    stage.run(SESSION)
    stage.append(2, LeaseResumed(stage.epoch(2)))
    assert stage.run(SESSION) == []
    assert stage.run(20) == [2]


def test_an_entry_that_the_watcher_has_not_read_yet_refuses_the_fence() -> None:
    """The broker has resumed its lease, and writes its entry before the watcher's."""
    stage = Stage(cluster(1, 2, 3), me=1)
    stage.silence(2)
    assert stage.run(30, apply=False) == [2]
    verdict = stage.look()
    assert verdict is not None
    assert verdict.records(stage.state) == (BrokerFenced(Epoch(2), Slot(2)),)
    moved = after(stage.state, 2, LeaseResumed(Epoch(2)))
    assert verdict.records(moved) == ()


def test_a_fence_of_another_watcher_is_not_repeated() -> None:
    stage = Stage(cluster(1, 2, 3), me=1)
    stage.silence(2)
    assert stage.run(30, apply=False) == [2]
    verdict = stage.look()
    assert verdict is not None
    fenced = after(stage.state, 3, BrokerFenced(Epoch(2)))
    assert verdict.records(fenced) == ()


# --- several at once ---


def test_several_silent_brokers_are_fenced_one_at_a_time() -> None:
    stage = Stage(cluster(1, 2, 3, 4, 5), me=1)
    stage.silence(2, 3)
    assert stage.run(40) == [2, 3]
    (_, first), (_, second) = stage.fences
    assert second - first >= HEARTBEAT


def test_after_a_fence_another_silent_broker_may_still_come_back() -> None:
    stage = Stage(cluster(1, 2, 3, 4, 5), me=1)
    stage.silence(2, 3)
    while stage.state.is_live(Epoch(2)):
        stage.run(0.1)
    stage.come_back(3)
    assert stage.run(40) == []


def test_a_verdict_does_not_hold_beside_another_watchers_fence() -> None:
    """Two watchers find two brokers silent: the second fence waits for a new judgement."""
    stage = Stage(cluster(1, 2, 3, 4, 5), me=1)
    stage.silence(2, 3)
    assert stage.run(30, apply=False) == [2]
    verdict = stage.look()
    assert verdict is not None
    stage.append(5, BrokerFenced(stage.epoch(3)))
    assert verdict.records(stage.state) == ()
    seen_at = stage.now
    assert stage.run(30) == [2]
    assert stage.fences[-1][1] - seen_at >= HEARTBEAT


def test_with_several_silent_the_watchers_wait_for_random_times() -> None:
    times = []
    for draw in (0.0, 0.5, 1.0):
        stage = Stage(cluster(1, 2, 3, 4, 5), me=1, draw=draw)
        stage.silence(2, 3)
        stage.run(30)
        times.append(stage.fences[0][1])
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize("brokers", [2, 3, 5, 100])
def test_the_last_survivor_fences_all_others_one_after_the_other(brokers: int) -> None:
    stage = Stage(cluster(*range(brokers)), me=0, draw=0.5)
    stage.silence(*range(1, brokers))
    died_at = stage.now
    fenced = stage.run(2 * (SESSION + 4 * HEARTBEAT) + brokers)
    assert sorted(fenced) == list(range(1, brokers))
    assert stage.fences[-1][1] - died_at < 2 * (SESSION + 3 * HEARTBEAT) + brokers / 2
    assert stage.watch.watched(stage.state) == ()


def test_a_watcher_with_three_silent_neighbours_looks_at_all_brokers() -> None:
    stage = Stage(cluster(*range(10)), me=0, draw=1.0)
    stage.run(20)
    stage.silence(1, 2, 3)
    assert stage.run(SESSION + 2 * HEARTBEAT) == []
    assert stage.reads[-1] == tuple(range(1, 10))
    stage.come_back(1, 2, 3)
    assert stage.run(2 * HEARTBEAT) == []
    assert stage.reads[-1] == (1, 2, 3)


def test_a_watcher_that_looks_at_all_goes_on_until_a_neighbour_lives() -> None:
    stage = Stage(cluster(*range(10)), me=0)
    stage.silence(*range(1, 8))
    assert stage.run(120) == list(range(1, 8))
    assert stage.fences[-1][1] - 100.0 < 3 * SESSION + 7 * 2 * HEARTBEAT
    assert stage.reads[-1] == (8, 9)


def test_a_watcher_is_not_alone_while_one_other_lives() -> None:
    stage = Stage(cluster(*range(6)), me=0)
    stage.silence(1, 2, 3, 4)
    assert stage.run(60) == [1, 2, 3, 4]
    gaps = [b - a for (_, a), (_, b) in zip(stage.fences, stage.fences[1:], strict=False)]
    assert min(gaps) >= HEARTBEAT
