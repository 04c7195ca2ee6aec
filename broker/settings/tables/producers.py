"""The broker settings of producers and transactions."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Setting, SettingType, without_effect
from tidelog.broker.settings.tables.brokers import MIB
from tidelog.broker.settings.tables.topics import DAY_MS, HOUR_MS, MINUTE_MS

PRODUCER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="producer.id.expiration.ms",
        kind=SettingType.INT,
        default=DAY_MS,
        valid=AtLeast(1),
        dynamic=True,
        doc="How long a partition remembers an idle producer's sequence numbers.",
    ),
    Setting(
        name="transaction.max.timeout.ms",
        kind=SettingType.INT,
        default=15 * MINUTE_MS,
        valid=AtLeast(1),
        doc="The longest transaction.timeout.ms that a producer may ask for.",
    ),
    Setting(
        name="transactional.id.expiration.ms",
        kind=SettingType.INT,
        default=7 * DAY_MS,
        valid=AtLeast(1),
        doc="How long an idle transactional id is remembered.",
    ),
    Setting(
        name="transaction.state.log.num.partitions",
        kind=SettingType.INT,
        default=50,
        valid=AtLeast(1),
        doc="Partitions of __transaction_state when it is created, on first use; later it counts "
        "no more.",
    ),
    without_effect(
        "transaction.state.log.replication.factor",
        SettingType.SHORT,
        3,
        "Replicas of __transaction_state in Kafka.",
        1,
    ),
    without_effect(
        "transaction.state.log.min.isr",
        SettingType.INT,
        2,
        "min.insync.replicas of __transaction_state in Kafka.",
        1,
    ),
    without_effect(
        "transaction.state.log.segment.bytes",
        SettingType.INT,
        100 * MIB,
        "segment.bytes of __transaction_state in Kafka.",
        1,
    ),
    Setting(
        name="transaction.abort.timed.out.transaction.cleanup.interval.ms",
        kind=SettingType.INT,
        default=10000,
        valid=AtLeast(1),
        doc="How often transactions past their timeout are aborted.",
    ),
    Setting(
        name="transaction.remove.expired.transaction.cleanup.interval.ms",
        kind=SettingType.INT,
        default=HOUR_MS,
        valid=AtLeast(1),
        doc="How often expired transactional ids are removed.",
    ),
    without_effect(
        "transaction.partition.verification.enable",
        SettingType.BOOLEAN,
        True,
        "Kafka's switch of the verification of a transaction's partitions with its coordinator "
        "(KIP-890); here they always are.",
        dynamic=True,
    ),
)
