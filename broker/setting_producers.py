"""The broker settings of producers and transactions."""

from __future__ import annotations

from tidelog.broker.setting_brokers import MIB
from tidelog.broker.setting_kinds import AtLeast, Kind, Setting, without_effect
from tidelog.broker.setting_topics import DAY_MS, HOUR_MS, MINUTE_MS

PRODUCER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="producer.id.expiration.ms",
        kind=Kind.INT,
        default=DAY_MS,
        valid=AtLeast(1),
        dynamic=True,
        doc="How long a partition remembers an idle producer's sequence numbers.",
    ),
    without_effect(
        "transaction.max.timeout.ms",
        Kind.INT,
        15 * MINUTE_MS,
        "The longest transaction.timeout.ms that a producer may ask for.",
        1,
    ),
    without_effect(
        "transactional.id.expiration.ms",
        Kind.INT,
        7 * DAY_MS,
        "How long an idle transactional id is remembered.",
        1,
    ),
    without_effect(
        "transaction.state.log.num.partitions",
        Kind.INT,
        50,
        "Partitions of __transaction_state.",
        1,
    ),
    without_effect(
        "transaction.state.log.replication.factor",
        Kind.SHORT,
        3,
        "Replicas of __transaction_state in Kafka.",
        1,
    ),
    without_effect(
        "transaction.state.log.min.isr",
        Kind.INT,
        2,
        "min.insync.replicas of __transaction_state in Kafka.",
        1,
    ),
    without_effect(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        100 * MIB,
        "segment.bytes of __transaction_state in Kafka.",
        1,
    ),
    without_effect(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10000,
        "How often transactions past their timeout are aborted.",
        1,
    ),
    without_effect(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        HOUR_MS,
        "How often expired transactional ids are removed.",
        1,
    ),
    without_effect(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "Whether a transaction's partitions are verified with its coordinator (KIP-890).",
        dynamic=True,
    ),
)
