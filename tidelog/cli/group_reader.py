"""Reads for `tidelog consume --group`: as a member of a consumer group, at least once.

It commits only printed records. If the process dies between printing and committing, the next
member prints those records again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Protocol, TypeVar

from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership import GroupMember
from tidelog.clock import SystemClock

COMMIT_INTERVAL_SECONDS = 1.0

StartT = TypeVar("StartT", contravariant=True)


class PartitionReader(Protocol[StartT]):
    """Prints the records of a topic's partitions."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        ...

    @property
    def done(self) -> bool:
        """Whether enough was printed."""
        ...

    async def begin(self, partition: int, start: StartT) -> int:
        """The start offset of a partition without a committed offset."""
        ...

    async def ends(self, partitions: list[int]) -> dict[int, int]:
        """The present ends of partitions."""
        ...

    async def show(self, partition: int, offset: int, partitions: int) -> int:
        """Print the next records, or wait a little; return the next offset."""
        ...


class GroupReader:
    """Reads the assigned partitions until enough was printed."""

    def __init__(self, reader: PartitionReader[StartT], member: GroupMember, start: StartT) -> None:
        self._reader = reader
        self._member = member
        self._begin = partial(reader.begin, start=start)
        self._offsets: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._commit_at = 0.0

    async def read(self, until_end: bool) -> None:
        """Print for ever, until enough was printed, or up to the ends at the last assignment.

        Then commit, and leave the group.
        """
        heartbeats = asyncio.create_task(self._member.run_heartbeats())
        try:
            await self._read(until_end)
        finally:
            try:
                await self._commit()
                with contextlib.suppress(RequestFailed, RequestRefused):
                    # The group removes this member anyway when its session expires.
                    await self._member.leave()
            finally:
                heartbeats.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await heartbeats

    async def _read(self, until_end: bool) -> None:
        ends: dict[int, int] = {}
        while not self._reader.done:
            if self._member.must_join:
                await self._commit()
                await self._join()
                ends = await self._reader.ends(list(self._offsets)) if until_end else {}
            left = [n for n in self._offsets if not until_end or self._offsets[n] < ends[n]]
            if until_end and not left:
                return
            for number in self._until_rejoin(left):
                self._offsets[number] = await self._reader.show(
                    number, self._offsets[number], len(left)
                )
            if not left:
                await SystemClock().sleep(COMMIT_INTERVAL_SECONDS / 10)
            if SystemClock().monotonic() >= self._commit_at:
                await self._commit()

    def _until_rejoin(self, partitions: list[int]) -> Iterator[int]:
        for number in partitions:
            if self._reader.done or self._member.must_join:
                return
            yield number

    async def _join(self) -> None:
        membership = await self._member.join()
        committed = await self._member.committed(membership.assignment)
        numbers = [place.partition for place in membership.assignment]
        self._committed = {
            place.partition: offset
            for place, offset in committed.items()
            if place.partition in numbers
        }
        self._offsets = {}
        for number in sorted(numbers):
            offset = self._committed.get(number)
            self._offsets[number] = await self._begin(number) if offset is None else offset

    async def _commit(self) -> None:
        """Commit the new offsets of printed records.

        If the group has rebalanced meanwhile, other members print those records again.
        """
        self._commit_at = SystemClock().monotonic() + COMMIT_INTERVAL_SECONDS
        printed = {
            Place(self._reader.topic, number): offset
            for number, offset in self._offsets.items()
            if self._committed.get(number) != offset
        }
        if not printed or self._member.membership is None:
            return
        try:
            await self._member.commit(printed)
        except RequestRefused:
            if not self._member.must_join:
                raise
        else:
            self._committed |= {place.partition: offset for place, offset in printed.items()}
