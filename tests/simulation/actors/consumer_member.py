"""A member of a group of the consumer protocol (KIP-848), which sends only heartbeats.

The member keeps revoked partitions until `join` is called, and its heartbeats say so. No other
member may have them before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.rules.history import Claim, Key, Operation
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups import membership_requests as requests
from tidelog.client.groups.admin import NO_OFFSET, Place
from tidelog.client.groups.membership_requests import GroupMembership, MembershipSettings
from tidelog.client.patience import Patience
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from tidelog.protocol.schemas.group_offsets import OffsetFetchRequest

R = TypeVar("R", bound=Response)

_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_NAMED_TOPICS_MAX = 9
"""The last version of OffsetCommit and OffsetFetch that has topics by name."""
_SAYS_ALL_PROBABILITY = 0.2
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class ConsumerMember:
    """One consumer's membership, with the calls of `GroupMember`."""

    def __init__(
        self,
        actor: Actor,
        client: Client,
        group: str,
        topics: Iterable[str],
        settings: MembershipSettings,
    ) -> None:
        self._actor = actor
        self._client = client
        self._group = group
        self._topics = sorted(set(topics))
        self._settings = settings
        self._member_id = str(actor.entropy.uuid())
        self._lives = 0
        """How often it has joined. A removed member comes back under the same id."""
        self._epoch = _JOIN_EPOCH
        self._told: frozenset[Place] = frozenset()
        """The assignment that the coordinator sent last."""
        self._has: frozenset[Place] = frozenset()
        """The partitions that the member reads, and may commit."""
        self._said: frozenset[Place] | None = None
        """The partitions that it reported, or None if the report or its answer may be lost."""
        self._membership: GroupMembership | None = None
        self._beating = asyncio.Lock()

    @property
    def membership(self) -> GroupMembership | None:
        """The current membership, or None if the member was removed or has not joined."""
        return self._membership

    @property
    def must_join(self) -> bool:
        """Whether the consumer is no member, or its partitions differ from its target."""
        return self._membership is None or self._told != self._has

    async def join(self) -> GroupMembership:
        """Join if it is no member, take the new partitions of its target, and give up the rest.

        Repeats until that is done. Raises:
            RequestRefused: the group will never take this member as it is.
        """
        patience = self._patience(None)
        while True:
            self._has = self._told
            try:
                await self._beat()
            except RequestFailed as failure:
                await patience.wait(failure)
            except RequestRefused as refusal:
                self._notice(refusal)
                await patience.wait(refusal)
            else:
                self._has = self._told
                return self._update()

    async def leave(self) -> None:
        """Leave at once.

        Raises:
            RequestRefused, RequestFailed: the group notices when the session expires.
        """
        if self._epoch > _JOIN_EPOCH:
            self._lose()
            await self._ask(
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group, member_id=self._member_id, member_epoch=_LEAVE_EPOCH
                )
            )

    async def run_heartbeats(self) -> None:
        """Keep the session until cancelled, and learn the target from the answers."""
        while True:
            await self._actor.clock.sleep(self._settings.heartbeat_interval_ms / 1000)
            if self._membership is None:
                continue
            try:
                await self._beat()
            except RequestFailed:
                continue
            except RequestRefused as refusal:
                self._notice(refusal)

    # --- heartbeats ---

    async def _beat(self) -> None:
        """Send one heartbeat. Its answer becomes a claim in the history."""
        async with self._beating:
            actor, life, has = self._actor, self._lives, self._has
            operation = actor.history.invoke(actor.name, "join")
            try:
                request = await self._heartbeat(has)
                self._said = None
                response = await self._ask(request)
                told = self._told
                if response.assignment is not None:
                    told = await self._by_name(response.assignment.topic_partitions)
            except (RequestFailed, RequestRefused) as error:
                actor.history.fail(operation, error_text(error))
                raise
            if life != self._lives:
                actor.history.fail(operation, "it has left meanwhile")
                return
            self._claim(operation, response, told)
            self._said = has

    async def _heartbeat(self, has: frozenset[Place]) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group, member_id=self._member_id, member_epoch=self._epoch
        )
        joins = self._epoch == _JOIN_EPOCH
        if joins or self._said != has or self._actor.random.random() < _SAYS_ALL_PROBABILITY:
            request.rebalance_timeout_ms = self._settings.rebalance_timeout_ms
            request.subscribed_topic_names = self._topics
            request.topic_partitions = await self._by_id(has)
        return request

    def _claim(
        self,
        operation: Operation,
        response: ConsumerGroupHeartbeatResponse,
        told: frozenset[Place],
    ) -> None:
        history = self._actor.history
        operation.claim = Claim(
            self._group,
            response.member_epoch,
            f"{self._member_id}.{self._lives}",
            False,
            tuple(Key(*place) for place in sorted(told)),
            "consumer",
        )
        history.ok(operation)
        self._epoch, self._told = response.member_epoch, told
        if self._membership is not None:
            self._update()

    def _update(self) -> GroupMembership:
        places = tuple(sorted(self._has))
        self._membership = GroupMembership(
            self._group, self._member_id, None, self._epoch, False, places
        )
        return self._membership

    async def _by_id(self, places: Iterable[Place]) -> list[HeartbeatTopicPartitions]:
        numbers: dict[str, list[int]] = {}
        for place in sorted(places):
            numbers.setdefault(place.topic, []).append(place.partition)
        return [
            HeartbeatTopicPartitions(
                topic_id=(await self._client.topic(topic)).topic_id, partitions=found
            )
            for topic, found in numbers.items()
        ]

    async def _by_name(self, topics: Iterable[HeartbeatTopicPartitions]) -> frozenset[Place]:
        names = {(await self._client.topic(name)).topic_id: name for name in self._topics}
        return frozenset(
            Place(names[topic.topic_id], number) for topic in topics for number in topic.partitions
        )

    def _notice(self, refusal: RequestRefused) -> None:
        if refusal.code in _FENCED:
            self._lose()
        elif not refusal.retriable:
            raise refusal

    def _lose(self) -> None:
        """Give up all partitions: other members may have them by now."""
        self._lives += 1
        self._epoch = _JOIN_EPOCH
        self._told = self._has = frozenset()
        self._said = None
        self._membership = None

    # --- offsets ---

    async def commit(self, offsets: Mapping[Place, int]) -> None:
        """Store the offsets of its partitions.

        Raises:
            RequestRefused: they were not stored.
            RequestFailed: they may or may not be stored.
        """
        membership = self._membership
        if membership is None:
            raise RequestRefused(f"commit of {self._group}", ErrorCode.UNKNOWN_MEMBER_ID)
        request = requests.commit_offsets(membership, offsets, "")
        response = await self._request(request)
        for topic in response.topics:
            for partition in topic.partitions:
                self._check("OffsetCommit", partition.error_code)

    async def committed(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offsets stored for these partitions, asked for as a member.

        Raises:
            RequestRefused, RequestFailed: the offsets are not known.
        """
        request = requests.fetch_offsets(self._group, places, require_stable=True)
        if request is None or self._membership is None:
            return {}
        for each in request.groups:
            each.member_id = self._member_id
            each.member_epoch = self._membership.generation
        patience = self._patience(self._settings.api_timeout_ms)
        while True:
            try:
                return await self._found(request)
            except RequestFailed as failure:
                await patience.wait(failure)
            except RequestRefused as refusal:
                if not refusal.retriable:
                    raise
                await patience.wait(refusal)

    async def _found(self, request: OffsetFetchRequest) -> dict[Place, int]:
        response = await self._request(request)
        found = {}
        for group in response.groups:
            self._check("OffsetFetch", group.error_code)
            for topic in group.topics:
                for partition in topic.partitions:
                    self._check("OffsetFetch", partition.error_code)
                    if partition.committed_offset != NO_OFFSET:
                        place = Place(topic.name, partition.partition_index)
                        found[place] = partition.committed_offset
        return found

    # --- requests ---

    async def _ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        response = await self._client.request_to_coordinator(
            CoordinatorKind.GROUP, self._group, request
        )
        self._check("ConsumerGroupHeartbeat", response.error_code)
        return response

    async def _request(self, request: Request[R]) -> R:
        return await self._client.request_to_coordinator(
            CoordinatorKind.GROUP, self._group, request, version_max=_NAMED_TOPICS_MAX
        )

    def _check(self, subject: str, code: int) -> None:
        if code != ErrorCode.NONE:
            raise RequestRefused(f"{subject} in group {self._group}", code)

    def _patience(self, timeout_ms: int | None) -> Patience:
        actor = self._actor
        return Patience(actor.clock, actor.entropy, self._settings.retries, timeout_ms)
