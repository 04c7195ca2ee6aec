"""The broker settings of consumer groups and their committed offsets; settings of single groups."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.broker.settings.kinds import (
    INT_MAX,
    AtLeast,
    OneOf,
    Scope,
    Setting,
    SettingType,
    SettingValue,
    Synonym,
    without_effect,
)
from tidelog.broker.settings.tables.brokers import MIB
from tidelog.broker.settings.tables.topics import MINUTE_MS
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


GROUP_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="group.initial.rebalance.delay.ms",
        kind=SettingType.INT,
        default=3000,
        valid=AtLeast(0),
        doc="How long the first rebalance of an empty group waits for more members; extended while "
        "they come, up to their rebalance timeout.",
    ),
    Setting(
        name="group.min.session.timeout.ms",
        kind=SettingType.INT,
        default=6000,
        valid=AtLeast(1),
        doc="The shortest session.timeout.ms that a member may ask for.",
    ),
    Setting(
        name="group.max.session.timeout.ms",
        kind=SettingType.INT,
        default=30 * MINUTE_MS,
        valid=AtLeast(1),
        doc="The longest session.timeout.ms that a member may ask for.",
    ),
    Setting(
        name="group.max.size",
        kind=SettingType.INT,
        default=INT_MAX,
        valid=AtLeast(1),
        doc="Members of one group; one more is refused.",
    ),
    Setting(
        name="group.coordinator.rebalance.protocols",
        kind=SettingType.LIST,
        default=(CLASSIC, CONSUMER),
        valid=SomeOf((CLASSIC, CONSUMER), CLASSIC),
        doc="The group protocols that are served: without consumer, ConsumerGroupHeartbeat is "
        "refused and clients with group.protocol=consumer fail.",
    ),
    Setting(
        name="group.consumer.session.timeout.ms",
        kind=SettingType.INT,
        default=45_000,
        valid=AtLeast(1),
        doc="A member of a consumer group that is not heard of for so long is put out.",
    ),
    Setting(
        name="group.consumer.heartbeat.interval.ms",
        kind=SettingType.INT,
        default=5_000,
        valid=AtLeast(1),
        doc="How often members of consumer groups are told to send heartbeats.",
    ),
    Setting(
        name="group.consumer.min.session.timeout.ms",
        kind=SettingType.INT,
        default=45_000,
        valid=AtLeast(1),
        doc="The shortest consumer.session.timeout.ms that a group may be given.",
    ),
    Setting(
        name="group.consumer.max.session.timeout.ms",
        kind=SettingType.INT,
        default=60_000,
        valid=AtLeast(1),
        doc="The longest consumer.session.timeout.ms that a group may be given.",
    ),
    Setting(
        name="group.consumer.min.heartbeat.interval.ms",
        kind=SettingType.INT,
        default=5_000,
        valid=AtLeast(1),
        doc="The shortest consumer.heartbeat.interval.ms that a group may be given.",
    ),
    Setting(
        name="group.consumer.max.heartbeat.interval.ms",
        kind=SettingType.INT,
        default=15_000,
        valid=AtLeast(1),
        doc="The longest consumer.heartbeat.interval.ms that a group may be given.",
    ),
    Setting(
        name="group.consumer.max.size",
        kind=SettingType.INT,
        default=INT_MAX,
        valid=AtLeast(1),
        doc="Members of one consumer group; one more is refused.",
    ),
    Setting(
        name="group.consumer.assignors",
        kind=SettingType.LIST,
        default=(UNIFORM, RANGE),
        valid=SomeOf((UNIFORM, RANGE)),
        doc="The assignors that members of consumer groups may ask for; the first is taken where "
        "none asks.",
    ),
    Setting(
        name="group.consumer.migration.policy",
        kind=SettingType.STRING,
        default=BIDIRECTIONAL,
        valid=OneOf((DISABLED, UPGRADE, DOWNGRADE, BIDIRECTIONAL)),
        doc="Whether a group with members goes over to the consumer protocol when the first member "
        "joins that speaks it (upgrade), and back when the last one goes (downgrade). Groups "
        "without members always do.",
    ),
    Setting(
        name="group.consumer.regex.lookup.interval.ms",
        kind=SettingType.INT,
        default=1000,
        valid=AtLeast(0),
        doc="How soon after a look the topics of a cluster that changes are looked at again that a "
        "consumer group's regular expressions name.",
    ),
    without_effect(
        "group.consumer.regex.refresh.interval.ms",
        SettingType.INT,
        10 * MINUTE_MS,
        "How often Kafka looks for topics that a regular expression names; Tidelog looks when a "
        "heartbeat comes after topics have changed (group.consumer.regex.lookup.interval.ms).",
        10_000,
    ),
)

OF_GROUP_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="consumer.session.timeout.ms",
        kind=SettingType.INT,
        default=45_000,
        valid=AtLeast(1),
        scope=Scope.GROUP,
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        doc="A member of this consumer group that is not heard of for so long is put out.",
    ),
    Setting(
        name="consumer.heartbeat.interval.ms",
        kind=SettingType.INT,
        default=5_000,
        valid=AtLeast(1),
        scope=Scope.GROUP,
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        doc="How often members of this consumer group are told to send heartbeats.",
    ),
)
"""What single groups may be given."""

OFFSETS_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="offsets.topic.num.partitions",
        kind=SettingType.INT,
        default=50,
        valid=AtLeast(1),
        doc="Partitions of __consumer_offsets when it is created, on first use; later it counts "
        "no more.",
    ),
    without_effect(
        "offsets.topic.replication.factor",
        SettingType.SHORT,
        3,
        "Replicas of __consumer_offsets in Kafka.",
        1,
    ),
    without_effect(
        "offsets.topic.segment.bytes",
        SettingType.INT,
        100 * MIB,
        "segment.bytes of __consumer_offsets in Kafka.",
        1,
    ),
    without_effect(
        "offsets.topic.compression.codec",
        SettingType.INT,
        0,
        "The codec of __consumer_offsets in Kafka.",
    ),
    Setting(
        name="offsets.retention.minutes",
        kind=SettingType.INT,
        default=7 * 24 * 60,
        valid=AtLeast(1),
        doc="How long the offsets of an empty group are kept.",
    ),
    Setting(
        name="offsets.retention.check.interval.ms",
        kind=SettingType.LONG,
        default=600000,
        valid=AtLeast(1),
        doc="How often expired offsets are removed.",
    ),
    without_effect(
        "offsets.commit.timeout.ms",
        SettingType.INT,
        5000,
        "Kafka's wait for a commit's replicas.",
        1,
    ),
    without_effect(
        "offsets.load.buffer.size",
        SettingType.INT,
        5 * MIB,
        "Kafka's buffer for loading offsets.",
        1,
    ),
    Setting(
        name="offset.metadata.max.bytes",
        kind=SettingType.INT,
        default=4096,
        doc="Characters of a committed offset's metadata.",
    ),
)
