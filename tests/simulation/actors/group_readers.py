"""Members of consumer groups: they join, read, commit, stall, crash and come back."""

from __future__ import annotations

import asyncio

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.consumer_member import ConsumerMember
from tests.simulation.actors.log_client import NoAnswer
from tests.simulation.actors.log_client import RequestRefused as FetchRefused
from tests.simulation.actors.readers import read_once
from tests.simulation.rules.history import Claim, GroupOffsets, GroupProtocol, Key
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership import GroupMember
from tidelog.client.groups.membership_requests import GroupMembership, MembershipSettings
from tidelog.client.patience import ClientRetrySettings
from tidelog.client.pool import Client

MEMBERSHIP = MembershipSettings(
    session_timeout_ms=4000,
    heartbeat_interval_ms=900,
    rebalance_timeout_ms=6000,
    api_timeout_ms=15_000,
    retries=ClientRetrySettings(50, 1000),
)
"""Short times, so that a short run meets every timer."""
_IDLE_SECONDS = 0.3
_STALL_SECONDS_MAX = 3 * MEMBERSHIP.session_timeout_ms / 1000


class Seat:
    """An actor's place in its group: its membership, its positions, and its claims in the
    history."""

    def __init__(
        self,
        actor: Actor,
        client: Client,
        group: str,
        keys: tuple[Key, ...],
        protocol: GroupProtocol,
    ) -> None:
        self._actor = actor
        self.group = group
        topics = {key.topic for key in keys}
        self.member: GroupMember | ConsumerMember
        if protocol == "classic":
            self.member = GroupMember(client, actor.clock, actor.entropy, group, topics, MEMBERSHIP)
        else:
            self.member = ConsumerMember(actor, client, group, topics, MEMBERSHIP)
        self.positions: dict[Key, int] = {}
        self._beats: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Send heartbeats from now on."""
        beats = self.member.run_heartbeats()
        self._beats = asyncio.create_task(beats, name=f"{self._actor.name} heartbeats")

    async def sleep(self) -> None:
        """Send no heartbeats."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.wait({self._beats})
            self._beats = None

    async def join(self) -> None:
        """Join the next generation, and continue at the group's committed offsets."""
        actor = self._actor
        self.positions = {}
        if isinstance(self.member, ConsumerMember):
            # Each of its heartbeats is in the history.
            await self.rewind(await self.member.join())
            return
        operation = actor.history.invoke(actor.name, "join")
        membership = await self.member.join()
        operation.claim = Claim(
            self.group,
            membership.generation,
            membership.member_id,
            membership.is_leader,
            tuple(Key(*place) for place in membership.assignment),
        )
        actor.history.ok(operation)
        await self.rewind(membership)

    async def rewind(self, membership: GroupMembership) -> None:
        """Move the positions to the group's committed offsets."""
        actor = self._actor
        self.positions = {}
        operation = actor.history.invoke(actor.name, "offsets")
        try:
            found = await self.member.committed(membership.assignment)
        except (RequestFailed, RequestRefused) as error:
            actor.history.fail(operation, error_text(error))
            return
        offsets = {Key(*place): found.get(place, -1) for place in membership.assignment}
        operation.offsets = GroupOffsets(self.group, membership.generation, offsets)
        actor.history.ok(operation)
        if self.member.membership is membership:
            self.positions = {key: max(0, offset) for key, offset in offsets.items()}
            actor.history.assign(actor.name)

    async def leave(self) -> None:
        """Report that the member leaves."""
        try:
            await self.member.leave()
        except (RequestFailed, RequestRefused) as error:
            self._actor.history.errors[f"leave: {error_text(error)}"] += 1


class GroupReader:
    """Reads as a member of a group, and commits its positions."""

    def __init__(self, actor: Actor, group: str, protocol: GroupProtocol) -> None:
        self._actor = actor
        self._group = group
        self._protocol = protocol

    async def run(self) -> None:
        """Run one life after the other, until everything was consumed."""
        actor = self._actor
        while not actor.closing.is_set():
            async with actor.kafka() as client:
                seat = Seat(actor, client, self._group, actor.settings.keys, self._protocol)
                seat.wake()
                try:
                    await self._live(seat)
                finally:
                    await seat.sleep()
            if not actor.stopping.is_set():
                await actor.pause(2.0)

    async def _live(self, seat: Seat) -> None:
        actor = self._actor
        committed: dict[Key, int] = {}
        is_owed = False
        while not actor.closing.is_set():
            if seat.member.must_join:
                await seat.join()
                committed = dict(seat.positions)
            await self._read(seat)
            chance = actor.random.random() if not actor.stopping.is_set() else 1.0
            if chance < 0.004:
                return  # A crash: the group has to notice it.
            if chance < 0.010:
                await seat.leave()
                return
            if chance < 0.015:
                await self._stall(seat)
            if actor.stopping.is_set():
                # At the end no more records arrive, after which the member would commit again.
                is_due = is_owed or seat.positions != committed
            else:
                is_due = seat.positions != committed and chance < 0.35
            if is_due:
                is_owed = not await self._commit(seat)
                committed = dict(seat.positions)
        await seat.leave()

    async def _read(self, seat: Seat) -> None:
        actor = self._actor
        if not seat.positions:
            membership = seat.member.membership
            await actor.clock.sleep(_IDLE_SECONDS)
            if membership is not None and membership.assignment and not seat.member.must_join:
                await seat.rewind(membership)
            return
        try:
            await read_once(
                actor, seat.positions, "read_committed", actor.settings.fetch_wait_seconds
            )
        except (FetchRefused, NoAnswer):
            await actor.backoff(1)
        await actor.pause(actor.settings.consume_pause_seconds_mean)

    async def _commit(self, seat: Seat) -> bool:
        """Commit the positions. Returns whether the commit is known to be stored."""
        actor, membership = self._actor, seat.member.membership
        if membership is None:
            return False
        operation = actor.history.invoke(actor.name, "commit")
        operation.offsets = GroupOffsets(seat.group, membership.generation, dict(seat.positions))
        offsets = {Place(*key): offset for key, offset in seat.positions.items()}
        try:
            await seat.member.commit(offsets)
        except (RequestFailed, RequestRefused) as error:
            actor.history.unknown(operation, error_text(error))
            return False
        actor.history.ok(operation)
        return True

    async def _stall(self, seat: Seat) -> None:
        """Stop for a while, as a paused process does, and then go on."""
        await seat.sleep()
        await self._actor.clock.sleep(self._actor.random.uniform(0.5, _STALL_SECONDS_MAX))
        await self._commit(seat)
        seat.wake()
