"""The broker settings of consumer groups and their committed offsets."""

from __future__ import annotations

from tidelog.broker.setting_brokers import MIB
from tidelog.broker.setting_kinds import INT_MAX, AtLeast, Kind, Setting, without_effect
from tidelog.broker.setting_topics import MINUTE_MS

GROUP_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="group.initial.rebalance.delay.ms",
        kind=Kind.INT,
        default=3000,
        valid=AtLeast(0),
        doc="How long the first rebalance of an empty group waits for more members; extended while "
        "they come, up to their rebalance timeout.",
    ),
    Setting(
        name="group.min.session.timeout.ms",
        kind=Kind.INT,
        default=6000,
        valid=AtLeast(1),
        doc="The shortest session.timeout.ms that a member may ask for.",
    ),
    Setting(
        name="group.max.session.timeout.ms",
        kind=Kind.INT,
        default=30 * MINUTE_MS,
        valid=AtLeast(1),
        doc="The longest session.timeout.ms that a member may ask for.",
    ),
    Setting(
        name="group.max.size",
        kind=Kind.INT,
        default=INT_MAX,
        valid=AtLeast(1),
        doc="Members of one group; one more is refused.",
    ),
)

OFFSETS_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="offsets.topic.num.partitions",
        kind=Kind.INT,
        default=50,
        valid=AtLeast(1),
        doc="Partitions of __consumer_offsets when it is created, on first use; later it counts "
        "no more.",
    ),
    without_effect(
        "offsets.topic.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of __consumer_offsets in Kafka.",
        1,
    ),
    without_effect(
        "offsets.topic.segment.bytes",
        Kind.INT,
        100 * MIB,
        "segment.bytes of __consumer_offsets in Kafka.",
        1,
    ),
    without_effect(
        "offsets.topic.compression.codec", Kind.INT, 0, "The codec of __consumer_offsets in Kafka."
    ),
    Setting(
        name="offsets.retention.minutes",
        kind=Kind.INT,
        default=7 * 24 * 60,
        valid=AtLeast(1),
        doc="How long the offsets of an empty group are kept.",
    ),
    Setting(
        name="offsets.retention.check.interval.ms",
        kind=Kind.LONG,
        default=600000,
        valid=AtLeast(1),
        doc="How often expired offsets are removed.",
    ),
    without_effect(
        "offsets.commit.timeout.ms", Kind.INT, 5000, "Kafka's wait for a commit's replicas.", 1
    ),
    without_effect(
        "offsets.load.buffer.size", Kind.INT, 5 * MIB, "Kafka's buffer for loading offsets.", 1
    ),
    Setting(
        name="offset.metadata.max.bytes",
        kind=Kind.INT,
        default=4096,
        doc="Characters of a committed offset's metadata.",
    ),
)
