"""The group coordinator's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.coordinator.patterns import PATTERN_LENGTH_MAX


class ConsumerTimeouts(NamedTuple):
    """The timeouts of one consumer group's members."""

    session_ms: int
    heartbeat_interval_ms: int


TimeoutsOf: TypeAlias = Callable[[str], ConsumerTimeouts]
"""Returns the timeouts in force for the consumer group with this id."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Defaults are Kafka's."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 30 * 60_000
    members_max: int = 2**31 - 1
    """Members of one group."""
    pending_members_max: int = 10_000
    """New members of one group that got their id and have not joined with it yet."""
    new_member_join_timeout_ms: int = 5 * 60_000
    """The limit on a new member's first join; it cannot send heartbeats yet."""
    offset_metadata_characters_max: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_check_interval_ms: int = 10 * 60_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_members_max: int = 2**31 - 1
    """Members of one consumer group."""
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors that members may request; the first is the default."""
    upgrades: bool = True
    """Whether a classic group becomes a consumer group when a member of the consumer protocol
    joins.

    See `group.consumer.migration.policy`.
    """
    downgrades: bool = True
    """Whether a consumer group becomes a classic group when only members of that protocol are
    left."""
    regex_length_max: int = PATTERN_LENGTH_MAX
    regex_lookup_interval_ms: int = 1_000
    """The interval between look-ups of the topics that a group's expressions match."""
    work_timeout_ms: int = 30_000
    """Slow work without a result is requested again after this. A deletion of a group that does not
    go on for this time is given up."""
    id_length_max: int = 1024
    """The length of a group, member or instance id, in characters."""
    member_bytes_max: int = 1024 * 1024
    """One member's own data in memory."""
    group_bytes_max: int = 16 * 1024 * 1024
    """All members' own data and assignments of one group in memory."""
    removals_max: int = 1_000
    """Offsets that one step removes."""
    sweep_groups_max: int = 64
    """Groups that one step of the sweep searches."""
    pause_ms: int = 50
    """The pause before the next step."""

    def consumer_timeouts(self, _group_id: str) -> ConsumerTimeouts:
        """The timeouts of consumer groups without settings of their own."""
        return ConsumerTimeouts(
            self.consumer_session_timeout_ms, self.consumer_heartbeat_interval_ms
        )
