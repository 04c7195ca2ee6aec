"""The broker settings that are defaults of topic settings, and those of creating topics."""

from __future__ import annotations

import sys

from tidelog.broker.settings.kinds import AtLeast, Setting
from tidelog.broker.settings.tables.columns import (
    ANY,
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    MIB,
    MINUTE_MS,
    NONE,
)
from tidelog.broker.settings.tables.topics import broker_defaults

IO_UNLIMITED = sys.float_info.max

# fmt: off
TOPIC_DEFAULT_SETTINGS: tuple[Setting, ...] = (
    Setting("auto.create.topics.enable", BOOLEAN, True, ANY,
        "Whether a Metadata request creates an unknown topic (if the client allows it)."),
    Setting("num.partitions", INT, 1, AtLeast(1),
        "Partitions of a topic that is created without a number of partitions."),
    Setting("delete.topic.enable", BOOLEAN, True, ANY, "Whether topics can be deleted."),
    *broker_defaults(
        "max.message.bytes", "message.timestamp.type", "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms", "retention.ms", "retention.bytes"),
    Setting("log.retention.check.interval.ms", LONG, 5 * MINUTE_MS, AtLeast(1),
        "How often the broker applies retention."),
    *broker_defaults(
        "cleanup.policy", "segment.bytes", "segment.ms", "segment.jitter.ms",
        "file.delete.delay.ms", "segment.index.bytes", "index.interval.bytes", "flush.messages",
        "flush.ms", "preallocate"),
    Setting("log.cleaner.enable", BOOLEAN, True, ANY,
        "Whether the broker compacts compacted topics."),
    *broker_defaults(
        "delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio"),
    Setting("log.cleaner.backoff.ms", LONG, 15000, AtLeast(0),
        "How long the log cleaner waits when there is nothing to clean.", dynamic=True),
    Setting("log.cleaner.dedupe.buffer.size", LONG, 128 * MIB, AtLeast(1),
        "The approximate memory for keys while a log is compacted; keys without room wait for the"
        " next round.", dynamic=True),
    Setting("log.cleaner.io.max.bytes.per.second", DOUBLE, IO_UNLIMITED, AtLeast(1),
        "Bytes that the log cleaner reads and writes in a second.", dynamic=True),
    Setting("log.cleaner.threads", INT, 1, AtLeast(0),
        "Kafka's number of cleaner threads; Tidelog cleans one log at a time.",
        dynamic=True, effect=NONE),
    Setting("log.cleaner.io.buffer.size", INT, 524288, AtLeast(0),
        "Memory for the reads and writes of Kafka's cleaner.", dynamic=True, effect=NONE),
    Setting("log.cleaner.io.buffer.load.factor", DOUBLE, 0.9, ANY,
        "How full Kafka's cleaner may make its table of keys.", dynamic=True, effect=NONE),
    *broker_defaults("local.retention.ms", "local.retention.bytes"),
)
# fmt: on
