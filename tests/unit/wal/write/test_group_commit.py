"""Producers that were just answered share the next slot; a single producer never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.properties.wal.batches import EPOCH_0, incarnation
from tests.unit.wal.writer_desk import PARTITION, Desk, story
from tidelog.identifiers import Slot
from tidelog.wal.format.object_format import ObjectHeader, ObjectKind, encode_header
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.group_commit import DELAYED_BYTES_MAX
from tidelog.wal.write.slot_entries import LogStartEntry
from tidelog.wal.write.writer import WalLost

PUT_SECONDS = 0.02
PATIENT = WalSettings(linger_ms=500)


class Producers:
    """Each producer sends a batch, and another one some time after its answer."""

    def __init__(self, desk: Desk, *, turnaround_seconds: float) -> None:
        self.desk = desk
        self.answered = 0
        self.lost: list[WalLost] = []
        self._turnaround = turnaround_seconds
        self._goes_on = True

    def send(self, size: int = 100) -> None:
        self.desk.writer.tell(self.desk.add(size), self._told)

    def stop(self) -> None:
        self._goes_on = False

    def _told(self, lost: WalLost | None) -> None:
        if lost is not None:
            self.lost.append(lost)
            return
        self.answered += 1
        if self._goes_on:
            asyncio.get_running_loop().call_later(self._turnaround, self.send)


async def put_slowly(desk: Desk, slots: int) -> None:
    """Let this many slots go through, each after the time that a put takes."""
    for slot in range(slots):
        while desk.key(slot) not in desk.gate.waiting:
            await desk.tick(0.0005)
        await desk.tick(PUT_SECONDS)
        desk.gate.release(desk.key(slot))
        await desk.tick(0)


def test_answered_and_waiting_producers_share_a_slot() -> None:
    async def tell(desk: Desk) -> None:
        producers = Producers(desk, turnaround_seconds=0.002)
        async with desk.running():
            producers.send()
            await desk.tick()
            for _ in range(4):
                producers.send()
            await put_slowly(desk, 6)
            producers.stop()
            desk.gate.open()
            await desk.writer.flush()
        # From the second slot on, each slot has the batches of all five.
        assert [len(await desk.offsets(slot)) for slot in range(6)] == [1, 5, 5, 5, 5, 5]

    story(tell, PATIENT)


def test_batches_sent_one_after_the_other_do_not_linger() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        producers = Producers(desk, turnaround_seconds=0.002)
        async with desk.running():
            producers.send()
            await desk.tick(0.1)
            producers.stop()
            assert producers.answered >= 48

    story(tell, PATIENT)


def test_the_linger_is_at_most_half_a_put() -> None:
    async def tell(desk: Desk) -> None:
        producers = Producers(desk, turnaround_seconds=60)
        async with desk.running():
            producers.send()
            await desk.tick()
            producers.send()
            await put_slowly(desk, 1)
            await desk.tick(PUT_SECONDS / 2 - 0.001)
            assert desk.gate.waiting == []
            await desk.tick(0.003)
            assert desk.gate.waiting == [desk.key(1)]

    story(tell, PATIENT)


def test_nor_longer_than_the_linger() -> None:
    async def tell(desk: Desk) -> None:
        producers = Producers(desk, turnaround_seconds=60)
        async with desk.running():
            producers.send()
            await put_slowly(desk, 1)
            producers.send()
            await desk.tick(0.002)
            assert desk.gate.waiting == [desk.key(1)]

    story(tell, WalSettings(linger_ms=1))


def test_without_a_linger_a_slot_goes_at_once() -> None:
    async def tell(desk: Desk) -> None:
        producers = Producers(desk, turnaround_seconds=60)
        async with desk.running():
            producers.send()
            producers.send()
            await put_slowly(desk, 1)
            producers.send()
            await desk.tick(0.0005)
            assert desk.gate.waiting == [desk.key(1)]

    story(tell, WalSettings(linger_ms=0))


def a_record_of_somebody_else(desk: Desk) -> None:
    desk.add()


def a_record_of_a_coordinator(desk: Desk) -> None:
    desk.writer.tell(desk.add(), lambda _: None, is_producer=False)


def a_large_batch(desk: Desk) -> None:
    desk.writer.tell(desk.add(DELAYED_BYTES_MAX), lambda _: None)


def a_later_log_start(desk: Desk) -> None:
    desk.writer.add(LogStartEntry(PARTITION, EPOCH_0, 1))
    desk.writer.begin_slot()


@pytest.mark.parametrize(
    "arrives",
    [a_record_of_somebody_else, a_record_of_a_coordinator, a_large_batch, a_later_log_start],
)
def test_urgent_work_ends_the_linger(arrives: Callable[[Desk], None]) -> None:
    async def tell(desk: Desk) -> None:
        producers = Producers(desk, turnaround_seconds=60)
        async with desk.running():
            producers.send()
            producers.send()
            await put_slowly(desk, 1)
            producers.send()
            await desk.tick()
            assert desk.gate.waiting == []
            arrives(desk)
            await desk.tick()
            assert desk.gate.waiting == [desk.key(1)]

    story(tell, PATIENT)


def test_producers_are_told_in_their_order_and_after_the_slot_was_seen() -> None:
    async def tell(desk: Desk) -> None:
        told: list[tuple[int, int, object]] = []

        def waits(number: int, slot: Slot) -> None:
            desk.writer.tell(slot, lambda lost: told.append((number, len(desk.durable), lost)))

        desk.gate.open()
        async with desk.running():
            slot = desk.add()
            for number in range(3):
                waits(number, slot)
            await desk.writer.durable(slot)
            await desk.tick()
            assert told == [(0, 1, None), (1, 1, None), (2, 1, None)]
            waits(3, slot)
            assert len(told) == 3
            await desk.tick()
            assert told[3] == (3, 1, None)

    story(tell)


def test_an_error_in_one_callback_does_not_affect_other_callbacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tell(desk: Desk) -> None:
        def fail(_: WalLost | None) -> None:
            raise KeyError("a mistake")

        told: list[WalLost | None] = []
        desk.gate.open()
        async with desk.running():
            slot = desk.add()
            desk.writer.tell(slot, fail)
            desk.writer.tell(slot, told.append)
            await desk.writer.flush()
            await desk.tick()
            assert told == [None]
        assert "callback of a slot" in caplog.text

    story(tell)


def test_producers_are_told_that_the_outcome_is_unknown() -> None:
    async def tell(desk: Desk) -> None:
        seal = encode_header(ObjectHeader(ObjectKind.SEAL, incarnation(), Slot(0), 0, bytes(16), 0))
        await desk.bucket.put(desk.key(0), seal)
        producers = Producers(desk, turnaround_seconds=60)
        desk.gate.open()
        async with desk.running():
            producers.send()
            producers.send()
            await desk.tick(0.01)
            assert len(producers.lost) == 2
            desk.writer.tell(Slot(0), producers._told)
            await desk.tick()
            assert len(producers.lost) == 3
        assert producers.answered == 0

    story(tell)
