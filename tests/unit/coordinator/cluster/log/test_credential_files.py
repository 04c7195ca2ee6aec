"""Changes of credentials: the log never names an object that the collector may have deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tests.unit.coordinator.cluster.samples import registered
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.credential_files import change_credentials, read_credentials
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX, Credentials
from tidelog.coordinator.cluster.records.records import BROKER_VERSION, LeaseResumed
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import Epoch
from tidelog.security.scram import ScramMechanism, Verifier
from tidelog.storage.object_store import Buffer, Condition
from tidelog.storage.stores.memory import MemoryStore

GRACE_SECONDS = 600
REGISTERED = replace(registered(1), version=BROKER_VERSION)
ALICE = ("alice", ScramMechanism.SCRAM_SHA_512)
VERIFIER = Verifier(ScramMechanism.SCRAM_SHA_512, 4096, b"salt" * 4, b"s" * 64, b"k" * 64)


class _JumpingClock(SystemClock):
    """The clock of a process that stalls."""

    later_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_seconds

    def time_ms(self) -> int:
        return super().time_ms() + int(self.later_seconds * 1000)


class _StallingStore(MemoryStore):
    """Calls `stall` when the first object of verifiers is stored, before its writer continues."""

    stall: Callable[[str], Awaitable[None]] | None = None

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        version = await super().put(key, data, condition)
        if self.stall is not None and key.startswith(CREDENTIALS_PREFIX):
            stall, self.stall = self.stall, None
            await stall(key)
        return version


class _Cluster:
    """The metadata logs of a broker and of another process."""

    def __init__(self) -> None:
        self.clock = _JumpingClock()
        self.store = _StallingStore(self.clock)
        self.written: list[str] = []

    async def open(self, seed: int) -> MetadataLog:
        return await MetadataLog.open(self.store, self.clock, SeededEntropy(seed), create=True)

    async def add_alice(self, log: MetadataLog, epoch: Epoch) -> None:
        def added(now: Credentials) -> Credentials:
            return now.changed((), {ALICE: VERIFIER})

        await change_credentials(log, self.store, self.clock, SeededEntropy(5), epoch, added)

    async def objects(self) -> list[str]:
        return [meta.key async for meta in self.store.list(CREDENTIALS_PREFIX)]


def test_a_process_that_stalls_beyond_the_grace_names_a_new_object() -> None:
    async def story() -> None:
        here = _Cluster()
        log, other = await here.open(1), await here.open(2)
        epoch = Epoch(await log.append(None, lambda _: (REGISTERED,)))

        async def stall(key: str) -> None:
            """The collector's condition becomes true meanwhile, and the collector deletes the
            object."""
            here.written.append(key)
            here.clock.later_seconds += GRACE_SECONDS + 1
            await other.append(epoch, lambda _: (LeaseResumed(epoch),))
            await here.store.delete(key)

        here.store.stall = stall
        await here.add_alice(log, epoch)
        await other.refresh()
        key, credentials = await read_credentials(other, here.store)
        assert credentials.verifiers == {ALICE: VERIFIER}
        assert await here.objects() == [key] != here.written
        await log.close()
        await other.close()

    asyncio.run(story())


def test_an_object_too_old_is_not_named_even_if_no_entry_came_meanwhile() -> None:
    async def story() -> None:
        here = _Cluster()
        log = await here.open(1)
        epoch = Epoch(await log.append(None, lambda _: (REGISTERED,)))

        async def stall(key: str) -> None:
            here.written.append(key)
            here.clock.later_seconds += GRACE_SECONDS / 2

        here.store.stall = stall
        await here.add_alice(log, epoch)
        assert log.state.credentials not in here.written
        assert await here.objects() == [log.state.credentials]
        await log.close()

    asyncio.run(story())


def test_a_younger_object_is_named() -> None:
    async def story() -> None:
        here = _Cluster()
        log = await here.open(1)
        epoch = Epoch(await log.append(None, lambda _: (REGISTERED,)))

        async def stall(key: str) -> None:
            here.written.append(key)
            here.clock.later_seconds += GRACE_SECONDS / 2 - 60

        here.store.stall = stall
        await here.add_alice(log, epoch)
        assert [log.state.credentials] == here.written == await here.objects()
        await log.close()

    asyncio.run(story())
