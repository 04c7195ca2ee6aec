"""Writers race for the numbers of a sequence over a store that fails in every way at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import Buffer, ObjectStore, StoreNotApplied
from tidelog.storage.sequence import AppendUndecided, Mine, Sequence, Taken
from tidelog.storage.stores.faulty import FaultRates, FaultyStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import RetryingStore, StoreRetrySettings

WRITERS, NUMBERS = 4, 12
rate = st.sampled_from([0.0, 0.05, 0.3])
faults = st.builds(
    FaultRates,
    refused=rate,
    request_lost=rate,
    answer_lost=rate,
    late=rate,
    slow=rate,
    late_seconds_max=st.sampled_from([0.2, 5.0, 100.0]),
)


@dataclass
class Outcomes:
    """The answers to the writers."""

    mine: dict[int, list[bytes]] = field(default_factory=dict)
    taken: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    not_applied: list[tuple[int, bytes]] = field(default_factory=list)


def identify(data: Buffer) -> bytes:
    return bytes(data[:16])


async def write(log: Sequence, name: int, crash_after: float | None, told: Outcomes) -> None:
    """Append at each number in turn. End when an outcome stays unknown (A1)."""
    for number in range(NUMBERS):
        writer_id = b"%02d-%02d" % (name, number) + bytes(11)
        body = writer_id + b"entry of %d" % name
        try:
            async with asyncio.timeout(crash_after):
                outcome = await log.append(number, body, writer_id, 10.0)
        except (AppendUndecided, TimeoutError):
            return
        except StoreNotApplied:
            told.not_applied.append((number, body))
            return
        match outcome:
            case Mine():
                told.mine.setdefault(number, []).append(body)
            case Taken(data):
                told.taken.append((number, body, bytes(data)))


@given(
    seed=st.integers(0, 2**32),
    rates=faults,
    retries=st.booleans(),
    crash_after=st.sampled_from([None, None, 0.5]),
)
def test_every_answer_is_true(
    seed: int, rates: FaultRates, retries: bool, crash_after: float | None
) -> None:
    async def main(loop: SimulatedLoop) -> None:
        clock = SimulatedClock(loop)
        truth = MemoryStore(clock)
        faulty = FaultyStore(truth, clock, SeededEntropy(seed), rates)
        store: ObjectStore = faulty
        if retries:
            settings = StoreRetrySettings(deadline_ms=3_000)
            store = RetryingStore(faulty, clock, SeededEntropy(seed + 1), settings)
        log = Sequence(store, clock, "log/", "", identify)
        told = Outcomes()
        async with asyncio.TaskGroup() as writers:
            for name in range(WRITERS):
                writers.create_task(write(log, name, crash_after, told))
        await faulty.settled()
        held = [
            bytes(entry.data)
            async for entry in Sequence(truth, clock, "log/", "", identify).iterate(0)
        ]
        for number, winners in told.mine.items():
            assert winners == [held[number]], "one writer owns a number, and it is the stored one"
        for number, ours, theirs in told.taken:
            assert held[number] == theirs != ours
        for number, ours in told.not_applied:
            assert number >= len(held) or held[number] != ours

    with SimulatedLoop(seed) as loop:
        loop.run(main(loop), seconds_max=100_000)
        assert loop.unhandled == []
