"""A member of a consumer group, in the classic protocol (KIP-62, KIP-345, KIP-394).

The member joins the group, and assigns the partitions if it is the leader. It sends heartbeats,
commits offsets, and joins again when the next generation begins. A consumer uses it so:

    while reading:
        if member.must_join:
            membership = await member.join()
            positions = await member.committed(membership.assignment)
        ... fetch, process, await member.commit(positions)

The caller runs `run_heartbeats` in a task beside that. JoinGroup waits for the other members and
blocks later requests on its connection: the member needs a `Client` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups import membership_requests as requests
from tidelog.client.groups.admin import NO_OFFSET, Place
from tidelog.client.groups.assignors import (
    CONSUMER_PROTOCOL,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tidelog.client.groups.membership_requests import (
    REACTIONS,
    GroupMembership,
    MembershipSettings,
    Reaction,
)
from tidelog.client.patience import Patience
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.groups import (
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupMember,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

R = TypeVar("R", bound=Response)

NO_MEMBER = ""
NO_GENERATION = -1
_NAMED_TOPICS_MAX = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""
_JOIN_GRACE_MS = 5000
"""The client waits this much longer than the rebalance timeout for JoinGroup."""


class GroupMember:
    """One consumer's membership, for one caller at a time beside `run_heartbeats`."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        entropy: Entropy,
        group_id: str,
        topics: Iterable[str],
        settings: MembershipSettings | None = None,
    ) -> None:
        """No other caller may use `client` for blocking requests, such as fetches."""
        self.group_id = group_id
        self.settings = settings if settings is not None else MembershipSettings()
        self._client = client
        self._clock = clock
        self._entropy = entropy
        self._topics = sorted(set(topics))
        self._member_id = NO_MEMBER
        self._membership: GroupMembership | None = None
        self._must_join = True
        self._partitions: dict[str, int] = {}
        """Partition counts that this member used as the group's leader; empty for other members."""
        self._answered_at = clock.monotonic()
        self._fatal: RequestRefused | None = None

    @property
    def membership(self) -> GroupMembership | None:
        """The current membership, or None while joining or after its loss.

        Without a membership the consumer must not read.
        """
        return self._membership

    @property
    def must_join(self) -> bool:
        """True if the next generation waits for this member, or has begun without it."""
        return self._must_join

    # --- generations ---

    async def join(self) -> GroupMembership:
        """Join the group's next generation; ends the current membership and its assignment.

        Retries without limit. Raises:
            RequestRefused: the group will never accept this member in its current form.
        """
        self._membership = None
        self._must_join = True
        self._partitions = {}
        patience = self._patience(None)
        while True:
            if self._fatal is not None:
                raise self._fatal
            try:
                request = requests.join_group(
                    self.group_id, self._member_id, self._topics, self.settings
                )
                joined = await self._request(
                    request, self.settings.rebalance_timeout_ms + _JOIN_GRACE_MS
                )
                if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                    self._member_id = joined.member_id
                    continue
                self._check("JoinGroup", joined.error_code)
                self._member_id = joined.member_id
                membership = await self._sync(joined)
            except RequestFailed as failure:
                await patience.wait(failure)
            except RequestRefused as refusal:
                self._react(refusal)
                await patience.wait(refusal)
            else:
                self._answered_at = self._clock.monotonic()
                self._membership = membership
                self._must_join = False
                return membership

    async def _sync(self, joined: JoinGroupResponse) -> GroupMembership:
        assignments: list[SyncGroupRequestAssignment] = []
        partitions: dict[str, int] = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            partitions, assignments = await self._share(joined)
        response = await self._request(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=self.settings.instance_id,
                protocol_type=CONSUMER_PROTOCOL,
                protocol_name=joined.protocol_name,
                assignments=assignments,
            ),
            self.settings.rebalance_timeout_ms + _JOIN_GRACE_MS,
        )
        self._check("SyncGroup", response.error_code)
        self._partitions = partitions
        return GroupMembership(
            self.group_id,
            joined.member_id,
            self.settings.instance_id,
            joined.generation_id,
            joined.leader == joined.member_id,
            decode_assignment(response.assignment),
        )

    async def _share(
        self, joined: JoinGroupResponse
    ) -> tuple[dict[str, int], list[SyncGroupRequestAssignment]]:
        """Assign the partitions to the members, as the group's leader."""
        assignors = {assignor.name: assignor for assignor in self.settings.assignors}
        assignor = assignors[joined.protocol_name or ""]
        subscriptions = {
            member.member_id: decode_subscription(member.metadata) for member in joined.members
        }
        topics = {topic for topics in subscriptions.values() for topic in topics}
        partitions = {topic: await self._count(topic) for topic in sorted(topics)}
        assigned = assignor.assign(subscriptions, partitions)
        return partitions, [
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(places))
            for member, places in assigned.items()
        ]

    async def _count(self, topic: str) -> int:
        """The partition count of a topic; 0 if it does not exist."""
        try:
            return len((await self._client.topic(topic)).partitions)
        except RequestRefused as refusal:
            if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return 0

    async def leave(self) -> None:
        """Leave the group, so that it need not wait for the session to expire.

        Static members stay: they return under their instance id.

        Raises:
            RequestRefused, RequestFailed: the group removes the member when the session expires.
        """
        member_id = self._member_id
        self._lose_membership(NO_MEMBER)
        if member_id == NO_MEMBER or self.settings.instance_id is not None:
            return
        request = LeaveGroupRequest(
            group_id=self.group_id,
            member_id=member_id,
            members=[LeaveGroupMember(member_id=member_id)],
        )
        response = await self._request(request)
        codes = [response.error_code, *(member.error_code for member in response.members)]
        for code in codes:
            if code != ErrorCode.UNKNOWN_MEMBER_ID:
                self._check("LeaveGroup", code)

    # --- heartbeats ---

    async def run_heartbeats(self) -> None:
        """Keep the session until cancelled, and detect when the member must join again."""
        interval_seconds = self.settings.heartbeat_interval_ms / 1000
        while True:
            await self._clock.sleep(interval_seconds)
            membership = self._membership
            if membership is None or self._must_join:
                continue
            try:
                await self._send_heartbeat(membership)
                await self._notice_new_partitions()
            except (RequestFailed, RequestRefused) as error:
                if self._membership is membership:
                    self._notice(error)

    async def _send_heartbeat(self, membership: GroupMembership) -> None:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=membership.generation,
            member_id=membership.member_id,
            group_instance_id=membership.instance_id,
        )
        asked_at = self._clock.monotonic()
        response = await self._request(request, self.settings.session_timeout_ms)
        if response.error_code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._answered_at = max(self._answered_at, asked_at)
        self._check("Heartbeat", response.error_code)

    async def _notice_new_partitions(self) -> None:
        """As the leader, join again if a topic has gained partitions."""
        for topic, count in self._partitions.items():
            if await self._count(topic) != count:
                self._must_join = True

    def _notice(self, error: RequestFailed | RequestRefused) -> None:
        """Update the membership after a failed heartbeat."""
        if isinstance(error, RequestRefused):
            try:
                self._react(error)
            except RequestRefused as fatal:
                self._fatal = fatal
                self._lose_membership(NO_MEMBER)
        silent_seconds = self._clock.monotonic() - self._answered_at
        if silent_seconds * 1000 > self.settings.session_timeout_ms:
            # The group has reassigned the partitions by now.
            self._lose_membership(self._member_id)

    # --- offsets ---

    async def commit(self, offsets: Mapping[Place, int], metadata: str = "") -> None:
        """Store the offsets of the next records to read, retrying until the outcome is certain.

        Raises:
            RequestRefused: the offsets were not stored. If `must_join`, other members may
                continue from earlier stored offsets.
            RequestFailed: no answer in time; the offsets may or may not be stored.
        """
        membership = self._membership
        if membership is None:
            raise RequestRefused(
                f"commit of group {self.group_id}",
                ErrorCode.UNKNOWN_MEMBER_ID,
                "not a member at present; nothing was sent",
            )
        request = requests.commit_offsets(membership, offsets, metadata)

        def check(response: Response) -> None:
            for topic in response.topics:  # type: ignore[attr-defined]
                for partition in topic.partitions:
                    self._check(f"OffsetCommit of {topic.name}", partition.error_code)

        await self._repeat(request, check, membership)

    async def committed(
        self, places: Iterable[Place], *, require_stable: bool = True
    ) -> dict[Place, int]:
        """The offsets stored for these partitions, where there are any.

        With `require_stable`, waits for transactions that are about to change them (KIP-447).

        Raises:
            RequestRefused, RequestFailed: no answer.
        """
        request = requests.fetch_offsets(self.group_id, places, require_stable=require_stable)
        if request is None:
            return {}
        found: dict[Place, int] = {}

        def check(response: Response) -> None:
            found.clear()
            for each in response.groups:  # type: ignore[attr-defined]
                self._check("OffsetFetch", each.error_code)
                for topic in each.topics:
                    for partition in topic.partitions:
                        self._check(f"OffsetFetch of {topic.name}", partition.error_code)
                        if partition.committed_offset != NO_OFFSET:
                            place = Place(topic.name, partition.partition_index)
                            found[place] = partition.committed_offset

        await self._repeat(request, check, self._membership)
        return found

    async def _repeat(
        self,
        request: Request[R],
        check: Callable[[Response], None],
        membership: GroupMembership | None,
    ) -> None:
        """Retry the request until `check` accepts the response, within one membership."""
        patience = self._patience(self.settings.api_timeout_ms)
        while True:
            try:
                check(await self._request(request))
            except RequestFailed as failure:
                await patience.wait(failure)
            except RequestRefused as refusal:
                if self._membership is membership:
                    self._react(refusal)
                if REACTIONS.get(refusal.code) is not Reaction.REPEAT:
                    raise
                await patience.wait(refusal)
            else:
                return

    # --- requests and their answers ---

    async def _request(self, request: Request[R], timeout_ms: int | None = None) -> R:
        return await self._client.request_to_coordinator(
            CoordinatorKind.GROUP,
            self.group_id,
            request,
            timeout_ms,
            version_max=_NAMED_TOPICS_MAX,
        )

    def _check(self, subject: str, code: int) -> None:
        if code != ErrorCode.NONE:
            raise RequestRefused(f"{subject} in group {self.group_id}", code)

    def _react(self, refusal: RequestRefused) -> None:
        """Apply an error's effect on the membership; raise a final error."""
        match REACTIONS.get(refusal.code):
            case Reaction.REPEAT:
                return
            case Reaction.JOIN:
                self._must_join = True
            case Reaction.GENERATION_LOST:
                self._lose_membership(self._member_id)
            case Reaction.MEMBER_LOST:
                self._lose_membership(NO_MEMBER)
            case None:
                raise refusal

    def _lose_membership(self, member_id: str) -> None:
        self._member_id = member_id
        self._membership = None
        self._must_join = True

    def _patience(self, timeout_ms: int | None) -> Patience:
        return Patience(self._clock, self._entropy, self.settings.retries, timeout_ms)
