"""Registration: one live incarnation a broker id, and no needless waiting (B1)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.unit.coordinator.cluster.samples import process
from tests.unit.coordinator.cluster.world import Broker, World, identity, simulate, within
from tidelog.coordinator.cluster.log.append_group import Build
from tidelog.coordinator.cluster.log.leases import Lease, WalProgress, encode_lease, lease_key
from tidelog.coordinator.cluster.membership.registration import (
    BrokerIdInUse,
    BucketInUse,
    Registered,
)
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    BrokerFenced,
    BrokerRegistered,
)
from tidelog.errors import Fenced, Refused
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot

SEVEN = BrokerId(7)


def test_the_first_broker_registers_at_once() -> None:
    async def story(world: World) -> None:
        before = world.loop.time()
        broker = await world.broker(7, world.process("a"))
        assert broker.registered.incarnation == Incarnation(SEVEN, Epoch(1))
        assert broker.registered.superseded == ()
        assert before <= broker.registered.started_at <= world.loop.time() < before + 1
        (record,) = world.entries()[1].records
        assert record == BrokerRegistered(
            SEVEN,
            "a.example",
            9092,
            identity(broker.process),
            session_timeout_ms=9000,
            version=BROKER_VERSION,
        )

    simulate(story)


def test_two_that_register_by_one_log_get_an_epoch_each() -> None:
    async def story(world: World) -> None:
        process = world.process("a")
        log = await world.log(process)
        both = await asyncio.gather(*(world.register(n, process, log) for n in (7, 8)))
        assert {each.incarnation.epoch for each in both} == {1, 2}

    simulate(story)


def test_after_a_kill_on_the_same_machine_the_successor_does_not_wait() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a", host="harbour"))
        within(first.process, first.keeper().run())
        await asyncio.sleep(5)
        first.process.kill()
        before = world.loop.time()
        second = await world.broker(7, world.process("b", host="harbour"))
        assert world.loop.time() - before < 1
        assert second.registered.superseded == (first.registered.incarnation,)
        assert world.entries()[-1].records[0] == BrokerFenced(first.epoch)
        assert not second.log.state.is_live(first.epoch)

    simulate(story)


def test_a_polite_end_lets_a_successor_on_another_machine_start_at_once() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        await first.log.append(first.epoch, lambda _: (BrokerFenced(first.epoch),))
        before = world.loop.time()
        second = await world.broker(7, world.process("b"))
        assert world.loop.time() - before < 1
        assert second.registered.superseded == (first.registered.incarnation,)

    simulate(story)


def test_after_a_kill_on_another_machine_the_lease_must_run_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        within(first.process, first.keeper().run())
        await asyncio.sleep(5)
        first.process.kill()
        before = world.loop.time()
        with caplog.at_level(logging.WARNING):
            second = await world.broker(7, world.process("b"))
        assert 9 <= world.loop.time() - before < 15
        assert second.registered.superseded == (first.registered.incarnation,)

    simulate(story)
    (waiting,) = [record for record in caplog.records if "waiting until" in record.message]
    assert waiting.__dict__["incarnation"] == "7-1"
    assert waiting.__dict__["held_by"] == "process 100 on host a"
    assert waiting.__dict__["lease"] == "cluster/lease/7.json"


def test_the_owners_session_timeout_counts_and_not_the_newcomers() -> None:
    async def story(world: World) -> None:
        await world.broker(7, world.process("a"), session_timeout_ms=30_000)
        before = world.loop.time()
        await world.broker(7, world.process("b"))
        assert world.loop.time() - before >= 30

    simulate(story)


@pytest.mark.parametrize("host", ["harbour", "elsewhere"])
def test_a_living_broker_keeps_its_id(host: str) -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a", host="harbour"))
        within(first.process, first.keeper().run())
        before = world.loop.time()
        with pytest.raises(BrokerIdInUse) as caught:
            await world.broker(7, world.process("b", host=host))
        assert world.loop.time() - before < 9
        message = str(caught.value)
        for part in ("broker id 7", "process 100 on host harbour", "a.example:9092", "7-1"):
            assert part in message
        assert "Stop that process first" in message
        assert isinstance(caught.value, Refused)
        assert len(world.entries()) == 2

    simulate(story)


def test_another_broker_id_is_not_concerned() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        second = await world.broker(8, world.process("b"))
        assert [info.epoch for info in second.log.state.live_brokers()] == [
            first.epoch,
            second.epoch,
        ]

    simulate(story)


def test_a_broker_that_stalls_on_the_same_machine_is_superseded_when_its_lease_is_out() -> None:
    """The old process exists but is paused. The seal will stop it when it wakes up."""

    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a", host="harbour"))
        keeping = within(first.process, first.keeper().run())
        await asyncio.sleep(5)
        first.process.pause()
        second = await world.broker(7, world.process("b", host="harbour"))
        assert second.registered.superseded == (first.registered.incarnation,)
        first.process.resume()
        with pytest.raises(Fenced):
            await first.create("from the past")
        with pytest.raises(Fenced):
            await keeping

    simulate(story)


def test_the_last_request_of_a_dead_broker_is_no_proof_that_it_lives() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        await first.keeper().renew()
        first.process.kill()
        registering = asyncio.ensure_future(world.broker(7, world.process("b")))
        await asyncio.sleep(4)
        late = Lease(SEVEN, first.epoch, 99, "ab" * 16, identity(first.process))
        world.place(lease_key(SEVEN), encode_lease(late))
        second = await registering
        assert second.registered.superseded == (first.registered.incarnation,)

    simulate(story)


def test_a_broker_that_writes_to_the_log_lives_though_its_lease_does_not_change() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        registering = asyncio.ensure_future(world.broker(7, world.process("b")))
        for _ in range(3):
            await asyncio.sleep(4)
            if not registering.done():
                await first.show_life()
        with pytest.raises(BrokerIdInUse):
            await registering

    simulate(story)


def test_a_broker_that_resumes_in_the_last_moment_is_not_fenced() -> None:
    """The old broker writes after the newcomer's last look and before the newcomer's entry."""

    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        newcomer = world.process("b")
        log = await world.log(newcomer)
        looked = asyncio.Event()

        async def interrupt(author: object, build: object) -> int:
            if not looked.is_set():
                looked.set()
                await first.show_life()
            return await append(author, build)

        append = log.append
        log.append = interrupt
        registering = asyncio.ensure_future(world.register(7, newcomer, log))
        await looked.wait()
        within(first.process, first.keeper().run())
        with pytest.raises(BrokerIdInUse):
            await registering
        assert log.state.is_live(first.epoch)

    simulate(story)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("alive_before", [False, True])
def test_of_several_newcomers_exactly_one_wins(seed: int, alive_before: bool) -> None:
    async def story(world: World) -> None:
        if alive_before:
            first = await world.broker(7, world.process("dead", host="harbour"))
            first.process.kill()
        world.store.settings.reply_lost_probability = 0.1
        world.store.settings.repeated_probability = 0.1

        async def newcomer(n: int) -> Registered | BrokerIdInUse:
            process = world.process(f"p{n}", host="harbour")
            log = await world.log(process)
            try:
                registered = await world.register(7, process, log)
            except BrokerIdInUse as error:
                return error
            within(process, Broker(world, process, log, registered).keeper().run())
            return registered

        outcomes = await asyncio.gather(*(newcomer(n) for n in range(4)))
        winners = [each for each in outcomes if isinstance(each, Registered)]
        assert len(winners) == 1
        state = world.replayed()
        assert [info.incarnation for info in state.live_brokers()] == [winners[0].incarnation]
        registrations = [
            record
            for entry in world.entries()
            for record in entry.records
            if isinstance(record, BrokerRegistered)
        ]
        assert len(registrations) == 1 + alive_before

    simulate(story, seed)


def test_a_lease_that_cannot_be_read_is_no_sign_of_life() -> None:
    """The lease's owner rewrites it, if it lives."""

    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        world.place(lease_key(SEVEN), b"rubbish")
        began = asyncio.get_running_loop().time()
        second = await world.broker(7, world.process("b"))
        assert asyncio.get_running_loop().time() - began >= 9
        assert not second.log.state.is_live(first.epoch)

    simulate(story)


def test_a_fence_names_how_far_the_predecessors_wal_was_durable() -> None:
    """The newcomer's lease replaces the lease that names the durable end."""

    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        lease = Lease(SEVEN, first.epoch, 5, "ab" * 16, process(), WalProgress(Slot(8), None))
        world.place(lease_key(SEVEN), encode_lease(lease))
        second = await world.broker(7, world.process("b"))
        assert second.log.state.brokers[first.epoch].durable_end == 8

    simulate(story)


# --- other ids ---


def test_brokers_of_several_ids_share_the_bucket() -> None:
    async def story(world: World) -> None:
        brokers = [await world.broker(n, world.process(f"b{n}", host="harbour")) for n in range(3)]
        state = world.replayed()
        assert [info.epoch for info in state.live_brokers()] == [each.epoch for each in brokers]

    simulate(story)


def test_a_newcomer_fences_brokers_of_other_ids_that_have_certainly_ended() -> None:
    """The newcomer cannot see processes on other machines. The watchers of leases fence those."""

    async def story(world: World) -> None:
        here, there, alive = [
            await world.broker(n, world.process(f"b{n}", host=host))
            for n, host in ((7, "harbour"), (8, "elsewhere"), (9, "harbour"))
        ]
        lease = Lease(SEVEN, here.epoch, 5, "ab" * 16, process(), WalProgress(Slot(8), None))
        world.place(lease_key(SEVEN), encode_lease(lease))
        here.process.kill()
        there.process.kill()
        before = world.loop.time()
        newcomer = await world.broker(10, world.process("c", host="harbour"))
        assert world.loop.time() - before < 1
        state = world.replayed()
        live = [info.epoch for info in state.live_brokers()]
        assert live == [there.epoch, alive.epoch, newcomer.epoch]
        assert state.brokers[here.epoch].durable_end == 8

    simulate(story)


def test_a_broker_that_was_judged_dead_and_writes_again_is_left_alone() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a", host="harbour"))
        newcomer = world.process("b", host="harbour")
        log = await world.log(newcomer)
        world.is_running = lambda *_: False  # type: ignore[method-assign]
        append, appends = log.append, 0

        async def interrupt(author: Epoch | None, build: Build) -> int:
            nonlocal appends
            appends += 1
            if appends == 2:
                await first.show_life()
            return await append(author, build)

        log.append = interrupt  # type: ignore[method-assign]
        registered = await world.register(8, newcomer, log)
        live = [info.epoch for info in world.replayed().live_brokers()]
        assert live == [first.epoch, registered.incarnation.epoch]

    simulate(story)


# --- brokers of earlier releases, which serve a bucket alone ---


@pytest.mark.parametrize("host", ["harbour", "elsewhere"])
def test_a_newcomer_is_refused_while_a_broker_of_an_earlier_release_lives(host: str) -> None:
    async def story(world: World) -> None:
        first = await world.earlier_release(7, world.process("a", host="harbour"))
        within(first.process, first.keeper().run())
        before = world.loop.time()
        with pytest.raises(BucketInUse) as caught:
            await world.broker(8, world.process("b", host=host))
        assert world.loop.time() - before < 9
        message = str(caught.value)
        for part in ("earlier release", "broker id 7", "process 100 on host harbour", "7-1"):
            assert part in message
        assert "Stop that process first" in message
        assert isinstance(caught.value, Refused)
        assert len(world.entries()) == 2

    simulate(story)


@pytest.mark.parametrize(("host", "seconds"), [("harbour", (0, 1)), ("elsewhere", (9, 15))])
def test_a_newcomer_takes_over_from_dead_brokers_of_an_earlier_release(
    host: str, seconds: tuple[float, float]
) -> None:
    async def story(world: World) -> None:
        dead = [
            await world.earlier_release(broker_id, world.process(name, host="harbour"))
            for broker_id, name in ((7, "a"), (9, "b"))
        ]
        lease = Lease(SEVEN, dead[0].epoch, 5, "ab" * 16, process(), WalProgress(Slot(8), None))
        world.place(lease_key(SEVEN), encode_lease(lease))
        for each in dead:
            each.process.kill()
        before = world.loop.time()
        newcomer = await world.broker(8, world.process("c", host=host))
        assert seconds[0] <= world.loop.time() - before < seconds[1], "a common wait for all dead"
        state = world.replayed()
        assert [info.epoch for info in state.live_brokers()] == [newcomer.epoch]
        assert [info.epoch for info in state.fenced_not_retired()] == [each.epoch for each in dead]
        assert state.brokers[dead[0].epoch].durable_end == 8

    simulate(story)


def test_after_a_polite_end_another_id_starts_at_once() -> None:
    async def story(world: World) -> None:
        first = await world.earlier_release(7, world.process("a"))
        await first.log.append(first.epoch, lambda _: (BrokerFenced(first.epoch),))
        before = world.loop.time()
        await world.broker(8, world.process("b"))
        assert world.loop.time() - before < 1

    simulate(story)


@pytest.mark.parametrize("appends_before", [0, 1])
def test_a_broker_of_an_earlier_release_that_resumes_in_the_last_moment_keeps_the_bucket(
    appends_before: int,
) -> None:
    """The old broker writes before the newcomer's registration, or between the registration and the
    newcomer's fence."""

    async def story(world: World) -> None:
        first = await world.earlier_release(7, world.process("a"))
        newcomer = world.process("b")
        log = await world.log(newcomer)
        append, appends = log.append, 0
        resumed = asyncio.Event()

        async def interrupt(author: Epoch | None, build: Build) -> int:
            nonlocal appends
            appends += 1
            if appends == appends_before + 1:
                await first.show_life()
                resumed.set()
            return await append(author, build)

        log.append = interrupt  # type: ignore[method-assign]
        registering = asyncio.ensure_future(world.register(8, newcomer, log))
        await resumed.wait()
        within(first.process, first.keeper().run())
        with pytest.raises(BucketInUse):
            await registering
        assert [info.epoch for info in log.state.live_brokers()] == [first.epoch]

    simulate(story)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("alive_before", [False, True])
def test_several_ids_that_start_at_once_all_serve(seed: int, alive_before: bool) -> None:
    async def story(world: World) -> None:
        if alive_before:
            first = await world.broker(7, world.process("dead", host="harbour"))
            first.process.kill()
        world.store.settings.reply_lost_probability = 0.1
        world.store.settings.repeated_probability = 0.1

        async def newcomer(n: int) -> Registered:
            process = world.process(f"p{n}", host="harbour")
            log = await world.log(process)
            registered = await world.register(n, process, log)
            within(process, Broker(world, process, log, registered).keeper().run())
            return registered

        registered = await asyncio.gather(*(newcomer(n) for n in range(4)))
        live = world.replayed().live_brokers()
        assert [info.incarnation for info in live] == [each.incarnation for each in registered]

    simulate(story, seed)
