"""The broker settings of consumer groups and their committed offsets; settings of single groups."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.broker.settings.kinds import (
    INT_MAX,
    AtLeast,
    OneOf,
    Scope,
    Setting,
    SettingValue,
    Synonym,
)
from tidelog.broker.settings.tables.columns import (
    ANY,
    INT,
    LIST,
    LONG,
    MIB,
    MINUTE_MS,
    NONE,
    SHORT,
    STRING,
)
from tidelog.coordinator.group.assign.assignors import RANGE, UNIFORM

CLASSIC, CONSUMER = "classic", "consumer"
DISABLED, UPGRADE, DOWNGRADE, BIDIRECTIONAL = "disabled", "upgrade", "downgrade", "bidirectional"


@dataclass(frozen=True, slots=True)
class SomeOf:
    """A list of some texts, each at most once, with at least one, and with `required`."""

    choices: tuple[str, ...]
    required: str | None = None

    @property
    def words(self) -> str:
        needed = "" if self.required is None else f", with {self.required}"
        return f"a list of {', '.join(self.choices)}{needed}; not empty"

    def allows(self, value: SettingValue) -> bool:
        return (
            isinstance(value, tuple)
            and 0 < len(value) == len(set(value))
            and all(item in self.choices for item in value)
            and (self.required is None or self.required in value)
        )


# fmt: off
GROUP_SETTINGS: tuple[Setting, ...] = (
    Setting("group.initial.rebalance.delay.ms", INT, 3000, AtLeast(0),
        "How long the first rebalance of an empty group waits for more members. Each new member"
        " extends it, up to the members' rebalance timeout."),
    Setting("group.min.session.timeout.ms", INT, 6000, AtLeast(1),
        "The shortest session.timeout.ms that a member may ask for."),
    Setting("group.max.session.timeout.ms", INT, 30 * MINUTE_MS, AtLeast(1),
        "The longest session.timeout.ms that a member may ask for."),
    Setting("group.max.size", INT, INT_MAX, AtLeast(1),
        "Members of one group; further ones are refused."),
    Setting("group.coordinator.rebalance.protocols", LIST, (CLASSIC, CONSUMER),
        SomeOf((CLASSIC, CONSUMER), CLASSIC),
        "The group protocols that the broker serves. Without consumer, it refuses"
        " ConsumerGroupHeartbeat, and clients with group.protocol=consumer fail."),
    Setting("group.consumer.session.timeout.ms", INT, 45_000, AtLeast(1),
        "The coordinator removes a member of a consumer group that sends no heartbeat for this"
        " long."),
    Setting("group.consumer.heartbeat.interval.ms", INT, 5_000, AtLeast(1),
        "How often the coordinator tells members of consumer groups to send heartbeats."),
    Setting("group.consumer.min.session.timeout.ms", INT, 45_000, AtLeast(1),
        "The shortest consumer.session.timeout.ms that a group may have."),
    Setting("group.consumer.max.session.timeout.ms", INT, 60_000, AtLeast(1),
        "The longest consumer.session.timeout.ms that a group may have."),
    Setting("group.consumer.min.heartbeat.interval.ms", INT, 5_000, AtLeast(1),
        "The shortest consumer.heartbeat.interval.ms that a group may have."),
    Setting("group.consumer.max.heartbeat.interval.ms", INT, 15_000, AtLeast(1),
        "The longest consumer.heartbeat.interval.ms that a group may have."),
    Setting("group.consumer.max.size", INT, INT_MAX, AtLeast(1),
        "Members of one consumer group; further ones are refused."),
    Setting("group.consumer.assignors", LIST, (UNIFORM, RANGE), SomeOf((UNIFORM, RANGE)),
        "The assignors that members of consumer groups may choose. Without a choice, the group"
        " uses the first."),
    Setting("group.consumer.migration.policy", STRING, BIDIRECTIONAL,
        OneOf((DISABLED, UPGRADE, DOWNGRADE, BIDIRECTIONAL)),
        "Whether a group with members converts to the consumer protocol when the first member"
        " joins that speaks it (upgrade), and back when the last such member leaves (downgrade)."
        " Groups without members always convert."),
    Setting("group.consumer.regex.lookup.interval.ms", INT, 1000, AtLeast(0),
        "The time between two look-ups of the topics that match the regular expressions of a"
        " consumer group, while the cluster's topics change."),
    Setting("group.consumer.regex.refresh.interval.ms", INT, 10 * MINUTE_MS, AtLeast(10_000),
        "How often Kafka looks up the topics that match a regular expression. Tidelog looks them"
        " up on the first heartbeat after a change of topics"
        " (group.consumer.regex.lookup.interval.ms).",
        effect=NONE),
)

OF_GROUP_SETTINGS: tuple[Setting, ...] = (
    Setting("consumer.session.timeout.ms", INT, 45_000, AtLeast(1),
        "The coordinator removes a member of this consumer group that sends no heartbeat for this"
        " long.",
        scope=Scope.GROUP, synonyms=(Synonym("group.consumer.session.timeout.ms"),)),
    Setting("consumer.heartbeat.interval.ms", INT, 5_000, AtLeast(1),
        "How often the coordinator tells members of this consumer group to send heartbeats.",
        scope=Scope.GROUP, synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),)),
)
"""The settings that single groups may have."""

OFFSETS_SETTINGS: tuple[Setting, ...] = (
    Setting("offsets.topic.num.partitions", INT, 50, AtLeast(1),
        "Partitions of __consumer_offsets at its creation, on first use; later changes have no"
        " effect."),
    Setting("offsets.topic.replication.factor", SHORT, 3, AtLeast(1),
        "Replicas of __consumer_offsets in Kafka.", effect=NONE),
    Setting("offsets.topic.segment.bytes", INT, 100 * MIB, AtLeast(1),
        "segment.bytes of __consumer_offsets in Kafka.", effect=NONE),
    Setting("offsets.topic.compression.codec", INT, 0, ANY,
        "The codec of __consumer_offsets in Kafka.", effect=NONE),
    Setting("offsets.retention.minutes", INT, 7 * 24 * 60, AtLeast(1),
        "How long the coordinator keeps the offsets of an empty group."),
    Setting("offsets.retention.check.interval.ms", LONG, 600000, AtLeast(1),
        "How often the coordinator removes expired offsets."),
    Setting("offsets.commit.timeout.ms", INT, 5000, AtLeast(1),
        "Kafka's wait for a commit's replicas.", effect=NONE),
    Setting("offsets.load.buffer.size", INT, 5 * MIB, AtLeast(1),
        "Kafka's buffer for loading offsets.", effect=NONE),
    Setting("offset.metadata.max.bytes", INT, 4096, ANY,
        "Characters of a committed offset's metadata."),
)
# fmt: on
