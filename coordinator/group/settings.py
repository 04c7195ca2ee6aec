"""What a broker's settings say to the group coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.coordinator.patterns import PATTERN_LENGTH_MAX


class ConsumerTimeouts(NamedTuple):
    """What the members of one consumer group are held to."""

    session_ms: int
    heartbeat_interval_ms: int


TimeoutsOf: TypeAlias = Callable[[str], ConsumerTimeouts]
"""Those that hold now for the consumer group of this id."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Defaults are Kafka's."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 30 * 60_000
    members_max: int = 2**31 - 1
    """Of one group."""
    pending_members_max: int = 10_000
    """Of one group: new members that were told their id and have not come back with it."""
    new_member_join_timeout_ms: int = 5 * 60_000
    """A new member's first join is given up after this; it cannot send heartbeats yet."""
    offset_metadata_characters_max: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_check_interval_ms: int = 10 * 60_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_members_max: int = 2**31 - 1
    """Of one consumer group."""
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Those that members may ask for; the first is taken where none of them asks."""
    upgrades: bool = True
    """A group of the classic protocol becomes a consumer group when a member joins that speaks the
    consumer protocol (`group.consumer.migration.policy`)."""
    downgrades: bool = True
    """A consumer group becomes one of the classic protocol when the last member goes that does not
    speak that."""
    regex_length_max: int = PATTERN_LENGTH_MAX
    regex_lookup_interval_ms: int = 1_000
    """How soon after a look the topics are looked at again that a group's expressions name."""
    work_timeout_ms: int = 30_000
    """What was asked for away from the event loop is asked for again after this."""
    id_length_max: int = 1024
    """Of a group, a member or an instance, in characters."""
    member_bytes_max: int = 1024 * 1024
    """What one member says of itself, in memory."""
    group_bytes_max: int = 16 * 1024 * 1024
    """What all members of a group say of themselves and are assigned, in memory."""
    removals_max: int = 1_000
    """Offsets that are removed at a time, where there are many."""
    sweep_groups_max: int = 64
    """Groups that are looked at at a time."""
    pause_ms: int = 50
    """How long others have the broker to themselves before the rest is dealt with."""

    def consumer_timeouts(self, _group_id: str) -> ConsumerTimeouts:
        """Those of every consumer group that has no settings of its own."""
        return ConsumerTimeouts(
            self.consumer_session_timeout_ms, self.consumer_heartbeat_interval_ms
        )
