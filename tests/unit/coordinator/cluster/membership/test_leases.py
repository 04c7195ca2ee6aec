"""Leases: no living broker is fenced in vain, and a broker knows first that it may be fenced (B2,
B3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.coordinator.cluster.samples import process
from tests.unit.coordinator.cluster.world import Broker, World, identity, simulate, within
from tidelog.coordinator.cluster.log.append_group import Build
from tidelog.coordinator.cluster.log.leases import (
    NO_PROGRESS,
    Lease,
    LeaseObservation,
    WalProgress,
    decode_lease,
    encode_lease,
    lease_key,
    read_lease,
)
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.records.codec import to_json
from tidelog.coordinator.cluster.records.documents import encode_document
from tidelog.coordinator.cluster.records.records import BrokerFenced, LeaseResumed, Record
from tidelog.coordinator.cluster.records.settings import (
    DELETE_GRACE_MS_MIN,
    ClusterSettings,
    append_timeout_ms_within,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject, Fenced, InvalidConfiguration, UnsupportedFormat
from tidelog.identifiers import BrokerId, Epoch, MetadataStamp, Slot
from tidelog.storage.object_store import StoreError, StoreFull, StoreOutcomeUnknown
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import RetryingStore

LEASE = Lease(
    BrokerId(7),
    Epoch(5),
    counter=3,
    writer="ab" * 16,
    process=process(),
    wal=WalProgress(Slot(9), Slot(4)),
    metadata=MetadataStamp(12, 0xFEEDBEEF),
)
KEY = lease_key(BrokerId(7))


def test_a_lease_is_read_as_it_was_written() -> None:
    data = encode_lease(LEASE)
    assert decode_lease(KEY, data) == LEASE
    assert data.startswith(b'{"magic":"tidelog.lease","format":2,"broker_id":7,"epoch":5,')


def test_a_lease_of_the_first_release_tells_nothing_of_the_wal() -> None:
    members = {
        name: value for name, value in to_json(LEASE).items() if name not in ("wal", "metadata")
    }
    found = decode_lease(KEY, encode_document("tidelog.lease", 1, members))
    assert (found.wal, found.metadata) == (NO_PROGRESS, None)
    assert replace(found, wal=LEASE.wal, metadata=LEASE.metadata) == LEASE


def test_a_corrupt_or_newer_lease_is_named() -> None:
    data = encode_lease(LEASE)
    with pytest.raises(CorruptObject, match=KEY):
        decode_lease(KEY, data.replace(b'"counter":3', b'"counter":4'))
    with pytest.raises(UnsupportedFormat, match=KEY):
        decode_lease(KEY, encode_document("tidelog.lease", 3, {}))
    with pytest.raises(CorruptObject, match="the lease of broker 7"):
        decode_lease(lease_key(BrokerId(8)), data)
    with pytest.raises(CorruptObject, match="lacks broker_id"):
        decode_lease(KEY, encode_document("tidelog.lease", 1, {}))


# --- observation ---


def watched(*looks: tuple[Lease | None, int, float, float]) -> LeaseObservation:
    observation = LeaseObservation(Epoch(5))
    for look in looks:
        observation = observation.observed(*look)
    return observation


def test_the_first_look_says_nothing() -> None:
    seen = watched((LEASE, 5, 10.0, 11.0))
    assert (seen.signs_of_life, seen.unchanged_seconds) == (0, 0.0)


def test_time_counts_from_the_first_answer_to_the_last_question() -> None:
    seen = watched((LEASE, 5, 10.0, 11.0), (LEASE, 5, 14.0, 19.0))
    assert (seen.signs_of_life, seen.unchanged_seconds) == (0, 3.0)


def test_questions_that_overlap_prove_nothing() -> None:
    seen = watched((LEASE, 5, 10.0, 19.0), (LEASE, 5, 14.0, 15.0))
    assert seen.unchanged_seconds == 0.0


@pytest.mark.parametrize(
    ("lease", "last_entry"),
    [
        (replace(LEASE, counter=4), 5),
        (replace(LEASE, counter=2), 5),
        (replace(LEASE, writer="cd" * 16), 5),
        (None, 5),
        (LEASE, 6),
    ],
)
def test_every_change_is_a_sign_of_life_and_starts_the_time_anew(
    lease: Lease | None, last_entry: int
) -> None:
    seen = watched((LEASE, 5, 0.0, 1.0), (LEASE, 5, 8.0, 9.0), (lease, last_entry, 10.0, 11.0))
    assert (seen.signs_of_life, seen.unchanged_seconds) == (1, 0.0)
    seen = seen.observed(lease, last_entry, 12.0, 13.0)
    assert (seen.signs_of_life, seen.unchanged_seconds) == (1, 1.0)


def test_an_older_incarnation_that_rewrites_the_lease_does_not_count() -> None:
    old = replace(LEASE, epoch=Epoch(4))
    seen = watched(
        (None, 5, 0.0, 1.0),
        (old, 5, 4.0, 4.0),
        (replace(old, counter=9), 5, 8.0, 8.0),
        (None, 5, 10.0, 10.0),
    )
    assert (seen.signs_of_life, seen.unchanged_seconds) == (0, 9.0)


# --- keeping ---


def fence_if_silent(observation: LeaseObservation) -> Build:
    def build(state: ClusterState) -> tuple[BrokerFenced, ...]:
        if state.brokers[observation.epoch].last_entry != observation.last_entry:
            return ()
        return (BrokerFenced(observation.epoch),)

    return build


async def fence_when_silent(observer: Broker, watched_broker: Broker) -> float:
    """Fence a broker that is silent for the session timeout, as a watcher does (B2). Returns the
    time."""
    epoch = watched_broker.epoch
    observation = LeaseObservation(epoch)
    clock = observer.process.clock
    while True:
        asked_at = clock.monotonic()
        state = await observer.log.refresh()
        lease = await read_lease(observer.store, watched_broker.registered.incarnation.broker_id)
        info = state.brokers[epoch]
        observation = observation.observed(lease, info.last_entry, asked_at, clock.monotonic())
        if observation.unchanged_seconds >= info.session_timeout_ms / 1000:
            await observer.log.append(observer.epoch, fence_if_silent(observation))
            if not observer.log.state.is_live(epoch):
                return clock.monotonic()
            observation = LeaseObservation(epoch)
        await clock.sleep(0.5)


def test_a_lease_is_renewed_at_each_interval() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        keeper = broker.keeper()
        within(broker.process, keeper.run())
        counters = []
        for _ in range(6):
            await asyncio.sleep(2)
            counters.append(decode_lease(KEY, world.stored(KEY)).counter)
            assert keeper.fresh(broker.process.clock.monotonic())
        assert counters[-1] in (6, 7)
        assert sorted(set(counters)) == counters
        # The log has only the registration.
        assert broker.log.state.sequence == 1

    simulate(story)


def test_a_lease_that_cannot_be_renewed_is_not_fresh_before_a_watcher_may_fence() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        observer = await world.broker(8, world.process("b"))
        keeper = broker.keeper()
        within(broker.process, keeper.run())
        fencing = within(observer.process, fence_when_silent(observer, broker))
        await asyncio.sleep(30)
        assert not fencing.done()
        assert keeper.fresh(broker.process.clock.monotonic())
        broker.process.pause()
        fenced_at = await fencing
        assert not keeper.fresh(fenced_at)

    simulate(story)


def test_after_a_fault_of_the_store_the_lease_is_resumed_and_the_broker_goes_on() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        keeper = broker.keeper()
        within(broker.process, keeper.run())
        await asyncio.sleep(10)
        world.store.fail_for(20, share=1.0)
        await asyncio.sleep(15)
        assert not keeper.fresh(broker.process.clock.monotonic())
        await asyncio.sleep(10)
        assert keeper.fresh(broker.process.clock.monotonic())
        assert world.entries()[-1].records == (LeaseResumed(broker.epoch),)

    simulate(story)


def test_a_lease_is_resumed_later_where_too_many_changes_wait() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"), waiting_appends_max=2)
        keeper = broker.keeper()
        keeping = within(broker.process, keeper.run())
        await asyncio.sleep(5)
        world.store.fail_for(15, share=1.0)
        first = within(broker.process, broker.create("a"))
        await asyncio.sleep(13)
        waiting = [within(broker.process, broker.create(name)) for name in ("b", "c")]
        await asyncio.sleep(20)
        await asyncio.gather(first, *waiting)
        assert not keeping.done()
        assert keeper.fresh(broker.process.clock.monotonic())

    simulate(story)


def test_a_fenced_broker_learns_it_when_it_would_resume() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        observer = await world.broker(8, world.process("b"))
        keeper = broker.keeper()
        keeping = within(broker.process, keeper.run())
        await asyncio.sleep(5)
        broker.process.pause()
        await within(observer.process, fence_when_silent(observer, broker))
        broker.process.resume()
        with pytest.raises(Fenced, match="7-1 was fenced"):
            await keeping
        assert not keeper.fresh(broker.process.clock.monotonic())

    simulate(story)


def test_a_renewal_that_takes_too_long_gives_way_to_the_next() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        keeper = broker.keeper()
        world.store.settings.put_seconds_min = world.store.settings.put_seconds_max = 60.0
        before = broker.process.clock.monotonic()
        with pytest.raises(StoreError, match="took too long"):
            await keeper.renew()
        assert broker.process.clock.monotonic() - before < 5

    simulate(story)


@pytest.mark.parametrize("seed", range(30))
def test_a_fenced_broker_was_not_fresh_then_and_never_is_again(seed: int) -> None:
    """Stalls of any length at any time, late puts, clocks of different rates: rule B3 holds."""

    async def story(world: World) -> None:
        random = world.loop.random
        broker = await world.broker(7, world.process("a", clock_rate=1.02))
        observer = await world.broker(8, world.process("b", clock_rate=0.98))
        keeper = broker.keeper()
        keeping = within(broker.process, keeper.run())
        fresh_when_fenced: list[bool] = []

        def listen(sequence: int, records: Sequence[Record]) -> None:
            if BrokerFenced(broker.epoch) in records:
                fresh_when_fenced.append(keeper.fresh(broker.process.clock.monotonic()))

        observer.log.subscribe(listen)
        fencing = within(observer.process, fence_when_silent(observer, broker))
        world.store.settings.slow_probability = 0.1
        world.store.settings.slow_seconds_max = 4.0
        while not fencing.done():
            await asyncio.sleep(random.uniform(0, 6))
            broker.process.pause()
            await asyncio.sleep(random.uniform(0, 11))
            broker.process.resume()
        await fencing
        assert fresh_when_fenced == [False]
        for _ in range(50):
            assert not keeper.fresh(broker.process.clock.monotonic())
            await asyncio.sleep(1)
        with pytest.raises(Fenced):
            await keeping

    simulate(story, seed)


def test_freshness_counts_from_the_registration_until_the_first_renewal() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        keeper: LeaseKeeper = broker.keeper()
        started = broker.registered.started_at
        assert keeper.fresh(started + 6.9)
        assert not keeper.fresh(started + 7.0)

    simulate(story)


def test_a_renewal_counts_from_its_start() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        keeper = broker.keeper()
        world.store.settings.put_seconds_min = world.store.settings.put_seconds_max = 3.0
        started = broker.process.clock.monotonic()
        await keeper.renew()
        assert broker.process.clock.monotonic() >= started + 3
        assert keeper.fresh(started + 6.9)
        assert not keeper.fresh(started + 7.1)

    simulate(story)


def test_a_renewal_that_is_given_up_names_the_last_answer() -> None:
    class Full(MemoryStore):
        async def put(self, key: str, *_: object) -> str:  # type: ignore[override]
            raise StoreFull(key, "the disk is full")

    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        clock, entropy = broker.process.clock, broker.process.entropy
        keeper = LeaseKeeper(
            RetryingStore(Full(clock), clock, entropy),
            clock,
            entropy,
            broker.log,
            broker.registered.incarnation,
            identity(broker.process),
            broker.registered.started_at,
            lambda: NO_PROGRESS,
        )
        with pytest.raises(StoreOutcomeUnknown, match="took too long: the disk is full"):
            await keeper.renew()

    simulate(story)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"session_timeout_ms": 3000}, "leaves no time to renew a lease"),
        ({"heartbeat_interval_ms": 0}, "heartbeat_interval_ms is 0"),
        ({"delete_grace_ms": 60_000}, "must be more than twice"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, int], why: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        ClusterSettings(**settings)


@pytest.mark.parametrize("grace_ms", [DELETE_GRACE_MS_MIN, 30_000, 60_000, 600_000])
def test_an_append_may_try_for_less_than_half_the_grace(grace_ms: int) -> None:
    timeout_ms = append_timeout_ms_within(grace_ms)
    settings = ClusterSettings(delete_grace_ms=grace_ms, append_timeout_ms=timeout_ms)
    assert settings.append_timeout_ms == min(30_000, grace_ms // 3)
