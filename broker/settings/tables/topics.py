"""The settings of topics: Kafka's names, types, defaults and rules, and their broker synonyms."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidelog.broker.settings.kinds import (
    LONG_MAX,
    AtLeast,
    Between,
    Effect,
    ListOf,
    Matching,
    OneOf,
    Scope,
    Setting,
    SettingType,
    SettingValue,
    Synonym,
    Validator,
)
from tidelog.broker.settings.tables.columns import (
    ANY,
    BOOLEAN,
    DAY_MS,
    DOUBLE,
    HOUR_MS,
    INT,
    LIST,
    LONG,
    MIB,
    MINUTE_MS,
    NONE,
    STRING,
)

SEGMENT_BYTES_MIN = MIB
MESSAGE_BYTES_MAX_DEFAULT = MIB + 12
_UNITS = {1: "", MINUTE_MS: " in minutes", HOUR_MS: " in hours"}

_THROTTLED_REPLICAS = Matching(
    re.compile(r"\*|[0-9]+:[0-9]+"), "a list of partition:broker pairs, or *"
)


def _topic(
    name: str,
    kind: SettingType,
    default: SettingValue,
    valid: Validator,
    doc: str,
    *synonyms: str | Synonym,
    effect: Effect = Effect.REAL,
) -> Setting:
    """A setting of topics, with its broker settings. One of the same name is the same setting."""
    both = name in synonyms
    return Setting(
        name,
        kind,
        default,
        valid,
        doc,
        scope=Scope.BOTH if both else Scope.TOPIC,
        dynamic=both,
        effect=effect,
        synonyms=tuple(Synonym(each) if isinstance(each, str) else each for each in synonyms),
    )


# fmt: off
TOPIC_SETTINGS: tuple[Setting, ...] = (
    _topic("cleanup.policy", LIST, ("delete",), ListOf(("compact", "delete")),
        "The records to delete. delete: by age and size. compact: all but the latest record of"
        " each key; records without a key are refused. Without either, all records are kept.",
        "log.cleanup.policy"),
    _topic("compression.type", STRING, "producer",
        OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        "The codec of stored batches. Batches from segments are encoded with it again at its"
        " fastest level, and for producer not compressed. producer keeps the producer's codec.",
        "compression.type"),
    _topic("compression.gzip.level", INT, -1, Between(1, 9, also=-1),
        "The level if compression.type is gzip; -1 is the codec's default.",
        "compression.gzip.level"),
    _topic("compression.lz4.level", INT, 9, Between(1, 17),
        "The level if compression.type is lz4.", "compression.lz4.level"),
    _topic("compression.zstd.level", INT, 3, Between(-131072, 22),
        "The level if compression.type is zstd.", "compression.zstd.level"),
    _topic("delete.retention.ms", LONG, DAY_MS, AtLeast(0),
        "How long a compacted topic keeps tombstones after their first compaction.",
        "log.cleaner.delete.retention.ms"),
    _topic("file.delete.delay.ms", LONG, MINUTE_MS, AtLeast(0),
        "Kafka's delay before it deletes a file; Tidelog deletes objects after"
        " log.delete.grace.ms.",
        "log.segment.delete.delay.ms", effect=NONE),
    _topic("flush.messages", LONG, LONG_MAX, AtLeast(1),
        "Kafka's number of records between fsyncs; in Tidelog an acknowledged record is durable.",
        "log.flush.interval.messages", effect=NONE),
    _topic("flush.ms", LONG, LONG_MAX, AtLeast(0),
        "Kafka's time between fsyncs; in Tidelog an acknowledged record is durable.",
        "log.flush.interval.ms", "log.flush.scheduler.interval.ms", effect=NONE),
    _topic("follower.replication.throttled.replicas", LIST, (), _THROTTLED_REPLICAS,
        "Replicas whose copying Kafka throttles on the follower.", effect=NONE),
    _topic("index.interval.bytes", INT, 4096, AtLeast(0),
        "Bytes between entries of Kafka's offset index.", "log.index.interval.bytes", effect=NONE),
    _topic("leader.replication.throttled.replicas", LIST, (), _THROTTLED_REPLICAS,
        "Replicas whose copying Kafka throttles on the leader.", effect=NONE),
    _topic("local.retention.bytes", LONG, -2, AtLeast(-2),
        "Bytes that Kafka's tiered storage keeps on local disks; -2 means retention.bytes.",
        "log.local.retention.bytes", effect=NONE),
    _topic("local.retention.ms", LONG, -2, AtLeast(-2),
        "How long Kafka's tiered storage keeps records on local disks; -2 means retention.ms.",
        "log.local.retention.ms", effect=NONE),
    _topic("max.compaction.lag.ms", LONG, LONG_MAX, AtLeast(1),
        "The maximum age of the oldest uncompacted record in the table, regardless of the ratio.",
        "log.cleaner.max.compaction.lag.ms"),
    _topic("max.message.bytes", INT, MESSAGE_BYTES_MAX_DEFAULT, AtLeast(0),
        "The largest accepted record batch, in stored (compressed) bytes.",
        "message.max.bytes"),
    _topic("message.timestamp.after.max.ms", LONG, HOUR_MS, AtLeast(0),
        "How far a CreateTime timestamp may lie after the broker's time (INVALID_TIMESTAMP).",
        "log.message.timestamp.after.max.ms"),
    _topic("message.timestamp.before.max.ms", LONG, LONG_MAX, AtLeast(0),
        "How far a CreateTime timestamp may lie before the broker's time (INVALID_TIMESTAMP).",
        "log.message.timestamp.before.max.ms"),
    _topic("message.timestamp.type", STRING, "CreateTime", OneOf(("CreateTime", "LogAppendTime")),
        "Whether a record's timestamp is the producer's or the time of the append.",
        "log.message.timestamp.type"),
    _topic("min.cleanable.dirty.ratio", DOUBLE, 0.5, Between(0, 1),
        "The share of uncompacted bytes in the table above which a log is compacted.",
        "log.cleaner.min.cleanable.ratio"),
    _topic("min.compaction.lag.ms", LONG, 0, AtLeast(0),
        "How old a segment's newest record must be before the segment is compacted; at most"
        " max.compaction.lag.ms.",
        Synonym("log.cleaner.min.compaction.lag.ms",
            note="; at most log.cleaner.max.compaction.lag.ms")),
    _topic("min.insync.replicas", INT, 1, AtLeast(1),
        "Replicas that acks=all waits for in Kafka; in Tidelog the object store replicates.",
        "min.insync.replicas", effect=NONE),
    _topic("preallocate", BOOLEAN, False, ANY,
        "Whether Kafka preallocates its files.", "log.preallocate", effect=NONE),
    _topic("remote.log.copy.disable", BOOLEAN, False, ANY,
        "Whether Kafka's tiered storage stops copying.", effect=NONE),
    _topic("remote.log.delete.on.disable", BOOLEAN, False, ANY,
        "Whether Kafka deletes tiered data when tiering ends.", effect=NONE),
    _topic("remote.storage.enable", BOOLEAN, False, OneOf((False,)),
        "Kafka's tiered storage. It cannot be enabled: the object store holds all data.",
        effect=NONE),
    _topic("retention.bytes", LONG, -1, ANY,
        "The stored (compressed) bytes that a partition keeps at least; negative means no limit.",
        "log.retention.bytes"),
    _topic("retention.ms", LONG, 7 * DAY_MS, AtLeast(-1),
        "The maximum age of records, by their timestamps; -1 means no limit.",
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTE_MS), Synonym("log.retention.hours", HOUR_MS)),
    _topic("segment.bytes", INT, 1024 * MIB, AtLeast(SEGMENT_BYTES_MIN),
        "The largest segment: bytes of keys, values and headers before compression for a roll,"
        " bytes of the file for a merge. Rolls and merges also end at the size of roll.bytes and"
        " merge.segment.bytes, so a larger value has no effect.", "log.segment.bytes"),
    _topic("segment.index.bytes", INT, 10 * MIB, AtLeast(4),
        "The size of one of Kafka's index files.", "log.index.size.max.bytes", effect=NONE),
    _topic("segment.jitter.ms", LONG, 0, AtLeast(0),
        "The random time that Kafka takes from segment.ms.",
        "log.roll.jitter.ms", Synonym("log.roll.jitter.hours", HOUR_MS, AtLeast(0)), effect=NONE),
    _topic("segment.ms", LONG, 7 * DAY_MS, AtLeast(1),
        "The age at which records go from the WAL into a segment; roll.age.ms counts if it is"
        " less. Also the longest time between records of a merged segment, which is deleted as a"
        " whole.",
        "log.roll.ms", Synonym("log.roll.hours", HOUR_MS, AtLeast(1))),
    _topic("unclean.leader.election.enable", BOOLEAN, False, ANY,
        "Whether Kafka may elect a replica that lacks records; in Tidelog no broker lacks records.",
        "unclean.leader.election.enable", effect=NONE),
)
# fmt: on


def broker_defaults(*names: str) -> Iterator[Setting]:
    """The broker settings that are the defaults of these settings of topics. The last synonym has
    the topic setting's default; those before it are unset."""
    by_name = {setting.name: setting for setting in TOPIC_SETTINGS}
    for topic in map(by_name.__getitem__, names):
        *unset, last = (synonym.name for synonym in topic.synonyms)
        for place, synonym in enumerate(topic.synonyms):
            first = place == 0
            yield Setting(
                synonym.name,
                topic.kind if synonym.factor == 1 else INT,
                synonym.in_broker_unit(topic.default) if synonym.name == last else None,
                topic.valid if first else synonym.valid,
                f"{topic.name} of topics that do not set it{synonym.note}."
                if first
                else f"The same{_UNITS[synonym.factor]}, if"
                f" {f'{unset[0]} is unset' if place == 1 else 'neither of them is set'}.",
                dynamic=first,
                effect=topic.effect,
            )
