"""Checks that a topic can be created, builds the record that creates it, and limits automatic
creations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tidelog.broker.settings.settings import BrokerSettings, check_topic_configs
from tidelog.coordinator.cluster.membership.assignment import NoLiveBroker, Placement
from tidelog.coordinator.cluster.membership.draining import is_drained, not_live
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.coordinator.cluster.records.topics import collision_key, new_topic_id, topic_name_fault
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.topic_transitions import PARTITIONS_PER_TOPIC_MAX
from tidelog.errors import InvalidConfiguration, TidelogError
from tidelog.identifiers import BrokerId, Epoch
from tidelog.protocol.error_codes import ErrorCode

INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Names that only brokers may create."""
DEFAULT = -1
TOPICS_MAX = "topics.max"
PARTITIONS_MAX = "partitions.max"
MINUTE_SECONDS: Final = 60.0


class TopicRefused(TidelogError):
    """The topic or its partitions are not created; `code` is Kafka's error.

    `limit` names the setting that refused them, if one did.
    """

    def __init__(self, code: ErrorCode, message: str, limit: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.limit = limit


class Room:
    """The numbers of topics and partitions that a cluster may still get."""

    def __init__(self, state: ClusterState, settings: BrokerSettings) -> None:
        self._topics_max = settings.integer(TOPICS_MAX)
        self._partitions_max = settings.integer(PARTITIONS_MAX)
        self._topics = len(state.topics)
        self._partitions = sum(topic.partition_count for topic in state.topics.values())

    def check(self, topics: int, partitions: int) -> None:
        """Raise TopicRefused if the additions exceed a limit. Existing topics stay."""
        for more, known, limit, name, things in (
            (topics, self._topics, self._topics_max, TOPICS_MAX, "topics"),
            (partitions, self._partitions, self._partitions_max, PARTITIONS_MAX, "partitions"),
        ):
            if more and known + more > limit:
                raise TopicRefused(
                    ErrorCode.POLICY_VIOLATION,
                    f"the cluster has {known} {things} and may have {limit} ({name}), so {more}"
                    " more are refused; delete topics or raise the limit",
                    name,
                )

    def take(self, topics: int, partitions: int) -> None:
        """Count additions."""
        self._topics += topics
        self._partitions += partitions


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic to create. -1 partitions or replicas mean the default.

    `assignments[p]` names the brokers of partition p, the first of which leads it; None leaves the
    choice to Tidelog.
    """

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


class CreationPlan:
    """The topics to create in one entry of the metadata log."""

    def __init__(
        self,
        state: ClusterState,
        settings: BrokerSettings,
        permit: Callable[[str, int], None],
    ) -> None:
        """`permit` raises TopicRefused if a quota forbids a topic with so many partitions.

        Raises TopicRefused if no broker can take partitions.
        """
        self._state = state
        self._settings = settings
        self._permit = permit
        self._names: dict[str, str] = {}
        self._room = Room(state, settings)
        self.records: list[TopicCreated] = []
        try:
            self._placement = Placement(state)
        except NoLiveBroker as error:
            raise TopicRefused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from error

    def add(self, wanted: WantedTopic, random: UUID) -> TopicCreated:
        """The record that creates the topic, with an id made of `random`.

        Raises TopicRefused, with checks in Kafka's order; the plan then stays unchanged.
        """
        check_topic_name(self._state, wanted.name)
        key = collision_key(wanted.name)
        if key in self._names:
            raise _collision(wanted.name, self._names[key])
        configs = _checked_configs(wanted.configs, self._settings)
        owners: tuple[Epoch, ...] | None = None
        if wanted.assignments is not None:
            owners = _assigned_owners(self._state, wanted)
        count = _partition_count(wanted, self._settings) if owners is None else len(owners)
        self._room.check(1, count)
        self._permit(wanted.name, count)
        if owners is None:
            owners = self._placement.assign(count)
        self._room.take(1, count)
        topic_id = new_topic_id(self._state.sequence + 1, random)
        record = TopicCreated(topic_id, wanted.name, owners, configs)
        self._names[key] = wanted.name
        self.records.append(record)
        return record


def check_topic_name(state: ClusterState, name: str) -> None:
    """Raise TopicRefused unless a topic of this name may be created."""
    if fault := topic_name_fault(name):
        raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name in INTERNAL_TOPICS:
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic; brokers create it"
        )
    other = state.topic_colliding_with(name)
    if other is not None and other.name == name:
        raise TopicRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")
    if other is not None:
        raise _collision(name, other.name)


def _collision(name: str, other: str) -> TopicRefused:
    return TopicRefused(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"topic {name} collides with {other}: '.' and '_' are the same in metric names",
    )


def named_owner(
    state: ClusterState, partition: int, broker_ids: Sequence[int], replicas: int | None
) -> Epoch:
    """The incarnation that leads a partition with this assignment. Raises TopicRefused."""
    if not broker_ids:
        raise _bad_assignment(f"partition {partition} has no brokers")
    if len(set(broker_ids)) != len(broker_ids):
        raise _bad_assignment(f"partition {partition} names a broker twice")
    if replicas is not None and len(broker_ids) != replicas:
        raise _bad_assignment("all partitions must have equally many brokers")
    for broker_id in broker_ids:
        if state.broker(BrokerId(broker_id)) is None:
            raise _bad_assignment(not_live(state, broker_id))
    leader = state.brokers[state.live_epochs[BrokerId(broker_ids[0])]]
    if leader.draining:
        raise _bad_assignment(is_drained(leader.broker_id))
    return leader.epoch


def _bad_assignment(why: str) -> TopicRefused:
    return TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


def _checked_configs(configs: Mapping[str, str | None], settings: BrokerSettings) -> dict[str, str]:
    given = {name: value for name, value in configs.items() if value is not None}
    if len(given) != len(configs):
        unset = ", ".join(sorted(name for name, value in configs.items() if value is None))
        raise TopicRefused(ErrorCode.INVALID_CONFIG, f"settings without a value: {unset}")
    try:
        check_topic_configs(given, settings)
    except InvalidConfiguration as error:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return given


def _assigned_owners(state: ClusterState, wanted: WantedTopic) -> tuple[Epoch, ...]:
    assignments = wanted.assignments
    assert assignments is not None
    if wanted.replication_factor != DEFAULT or wanted.partition_count != DEFAULT:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST,
            "with an assignment, partitions and replication factor must be left at -1",
        )
    if sorted(assignments) != list(range(len(assignments))):
        raise _bad_assignment("partitions must be numbered from 0 without a gap")
    if len(assignments) > PARTITIONS_PER_TOPIC_MAX:
        raise _too_many(len(assignments))
    replicas = len(assignments[0])
    return tuple(
        named_owner(state, partition, assignments[partition], replicas)
        for partition in range(len(assignments))
    )


def _partition_count(wanted: WantedTopic, settings: BrokerSettings) -> int:
    if wanted.replication_factor < DEFAULT or wanted.replication_factor == 0:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"a replication factor of {wanted.replication_factor}: it must be above 0, or -1",
        )
    if wanted.partition_count < DEFAULT or wanted.partition_count == 0:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"{wanted.partition_count} partitions: there must be at least one, or -1",
        )
    if wanted.partition_count > PARTITIONS_PER_TOPIC_MAX:
        raise _too_many(wanted.partition_count)
    if wanted.partition_count == DEFAULT:
        return settings.integer("num.partitions")
    return wanted.partition_count


def _too_many(count: int) -> TopicRefused:
    return TopicRefused(
        ErrorCode.INVALID_PARTITIONS,
        f"{count} partitions: a topic may have at most {PARTITIONS_PER_TOPIC_MAX}",
    )


class AutoCreations:
    """Counts one broker's automatic creations by the minute."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._taken = 0

    def take(self, wanted: int, minute_max: int, now: float) -> int:
        """Grant up to `wanted` creations now, and count them."""
        if now - self._began >= MINUTE_SECONDS:
            self._began, self._taken = now, 0
        granted = max(0, min(wanted, minute_max - self._taken))
        self._taken += granted
        return granted
