"""Limits the memory that requests may add to a group coordinator. Pure.

The limits hold for additions alone. Existing state, also from a log that exceeds the limits, stays
and can be renewed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog.coordinator.budget import ID_LENGTH_MAX, Budget, Share, limit_met
from tidelog.coordinator.decision import LimitMet
from tidelog.coordinator.group.commands import (
    CommitOffsets,
    CommitTransactionalOffsets,
    Join,
)
from tidelog.coordinator.group.consumer_commands import JOIN_EPOCH, ConsumerHeartbeat
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.group.state.sizes import (
    GROUP_BYTES,
    MEMBER_BYTES,
    OFFSET_BYTES,
    PENDING_BYTES,
    names_bytes,
    offset_bytes,
    protocols_bytes,
    subscription_bytes,
    texts_bytes,
)
from tidelog.protocol.error_codes import ErrorCode

MEMBER_BYTES_MAX: Final = "group.member.max.bytes"
GROUP_BYTES_MAX: Final = "group.max.bytes"
GROUPS_MAX: Final = "groups.max"
GROUPS_BYTES_MAX: Final = "groups.max.bytes"


class GroupBudgets(NamedTuple):
    """The limits that all group coordinators of a broker share."""

    groups: Budget
    size_bytes: Budget


def unlimited() -> GroupBudgets:
    """Budgets of a coordinator on its own, and of readers of its log."""
    return GroupBudgets(Budget.unlimited(), Budget.unlimited())


class GroupLimits:
    """Counts one coordinator's groups and bytes, and says whether more may be added."""

    def __init__(self, settings: GroupSettings, budgets: GroupBudgets) -> None:
        self._settings = settings
        self._groups: Share = budgets.groups.share()
        self._bytes: Share = budgets.size_bytes.share()
        self._sizes: dict[str, int] = {}
        self._sizes_sum = 0

    # Accounting.

    def measure(
        self, group_id: str, classic: ClassicGroup | None, consumers: ConsumerGroup | None
    ) -> None:
        """Update the size of a group."""
        size = 0 if classic is None else classic.size_bytes
        size += 0 if consumers is None else consumers.size_bytes
        self._sizes_sum += size - self._sizes.pop(group_id, 0)
        if size:
            self._sizes[group_id] = size
        self._groups.hold(len(self._sizes))

    def hold(self, offsets: CommittedOffsets) -> None:
        """Update the held bytes of groups and offsets."""
        self._bytes.hold(self._sizes_sum + offsets.size_bytes)

    def close(self) -> None:
        """Give back everything held."""
        self._groups.hold(0)
        self._bytes.hold(0)

    # Limits.

    def join(
        self, join: Join, classic: ClassicGroup | None, consumers: ConsumerGroup | None
    ) -> LimitMet | None:
        """Why a member of the classic protocol is refused; None if it is accepted."""
        texts = texts_bytes(join.member_id, join.instance_id, join.client_id, join.client_host)
        size = MEMBER_BYTES + texts + protocols_bytes(join.protocols)
        known = _size_of_member(join.member_id, join.instance_id, classic, consumers)
        ids = self._ids(join.group_id, join.member_id, join.instance_id)
        return ids or self._member(size, known, _said_bytes(classic, consumers))

    def heartbeat(
        self,
        heartbeat: ConsumerHeartbeat,
        classic: ClassicGroup | None,
        consumers: ConsumerGroup | None,
    ) -> LimitMet | None:
        """Why a consumer group's member, or its larger subscription, is refused; else None."""
        is_new = heartbeat.member_epoch == JOIN_EPOCH
        if not (is_new or heartbeat.topic_names or heartbeat.topic_regex):
            return None
        texts = texts_bytes(
            heartbeat.member_id,
            heartbeat.instance_id,
            heartbeat.rack_id,
            heartbeat.client_id,
            heartbeat.client_host,
            heartbeat.topic_regex,
        )
        size = MEMBER_BYTES + texts + names_bytes(heartbeat.topic_names or ())
        known = _size_of_member(heartbeat.member_id, heartbeat.instance_id, None, consumers)
        ids = self._ids(heartbeat.group_id, heartbeat.member_id, heartbeat.instance_id)
        return ids or self._member(size, known, _said_bytes(classic, consumers))

    def commit(
        self,
        commit: CommitOffsets | CommitTransactionalOffsets,
        offsets: CommittedOffsets,
        *,
        opens_group: bool,
    ) -> LimitMet | None:
        """Why offsets are refused; None if they are accepted."""
        more = GROUP_BYTES if opens_group else 0
        is_pending = isinstance(commit, CommitTransactionalOffsets)
        found = offsets.of_group(commit.group_id)
        for each in commit.offsets:
            more += len(each.metadata)
            if is_pending:
                more += PENDING_BYTES
            else:
                known = found.get(each.topic, {}).get(each.partition)
                more += OFFSET_BYTES - offset_bytes(known)
        return self._one_more_group(opens_group) or self._ids(commit.group_id) or self.memory(more)

    def assignments(self, before: int, after: int) -> LimitMet | None:
        """Why a leader's assignments, with this change of size, are refused; else None."""
        limit = self._settings.group_bytes_max
        if after > max(before, limit):
            return limit_met(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                GROUP_BYTES_MAX,
                f"the assignments of a group's members would take it to {after} bytes; at most"
                f" {limit} are accepted",
            )
        return self.memory(after - before)

    def memory(self, more: int) -> LimitMet | None:
        """Why groups and offsets may not take `more` bytes; None if they may."""
        return self._bytes.refusal(
            more,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            GROUPS_BYTES_MAX,
            "groups and their offsets take {held} bytes; {more} more would be above {limit}",
        )

    def _ids(self, group_id: str, *others: str | None) -> LimitMet | None:
        limit = self._settings.id_length_max
        longest = max(map(len, filter(None, (group_id, *others))), default=0)
        if longest <= limit:
            return None
        error = ErrorCode.INVALID_GROUP_ID if len(group_id) > limit else ErrorCode.INVALID_REQUEST
        return limit_met(
            error,
            ID_LENGTH_MAX,
            f"the id of a group, a member or an instance has {longest} characters; at most {limit}"
            " are accepted",
        )

    def _member(self, size: int, known: int, group_bytes: int) -> LimitMet | None:
        """`known`: the bytes of the existing member; 0 for a new one."""
        settings, more = self._settings, size - known
        if size > settings.member_bytes_max:
            return limit_met(
                ErrorCode.INVALID_REQUEST,
                MEMBER_BYTES_MAX,
                f"the data of a member takes {size} bytes; at most"
                f" {settings.member_bytes_max} are accepted",
            )
        if group_bytes == 0:
            more += GROUP_BYTES
            if (refusal := self._one_more_group(True)) is not None:
                return refusal
        if more > 0 and group_bytes + more > settings.group_bytes_max:
            return limit_met(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                GROUP_BYTES_MAX,
                f"the members of the group take {group_bytes} bytes; {more} more would be above"
                f" {settings.group_bytes_max}",
            )
        return self.memory(more)

    def _one_more_group(self, opens_group: bool) -> LimitMet | None:
        return self._groups.refusal(
            int(opens_group),
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            GROUPS_MAX,
            "there are {held} groups; at most {limit} are kept",
        )


def _said_bytes(classic: ClassicGroup | None, consumers: ConsumerGroup | None) -> int:
    """The bytes of a group that clients determine; 0 if it does not exist."""
    if classic is not None:
        return classic.size_bytes
    return 0 if consumers is None else consumers.said_bytes


def _size_of_member(
    member_id: str,
    instance_id: str | None,
    classic: ClassicGroup | None,
    consumers: ConsumerGroup | None,
) -> int:
    """The bytes of an existing member; 0 for a new one."""
    if classic is not None:
        member = classic.members.get(classic.static_members.get(instance_id or "", member_id))
        return 0 if member is None else member.size_bytes
    if consumers is not None:
        known_id = consumers.static_members.get(instance_id or "", member_id)
        said = consumers.subscriptions.get(known_id)
        return 0 if said is None else len(known_id) + subscription_bytes(said)
    return 0
