"""The broker settings of producers and transactions."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Setting
from tidelog.broker.settings.tables.columns import (
    ANY,
    BOOLEAN,
    DAY_MS,
    HOUR_MS,
    INT,
    MIB,
    MINUTE_MS,
    NONE,
    SHORT,
)

# fmt: off
PRODUCER_SETTINGS: tuple[Setting, ...] = (
    Setting("producer.id.expiration.ms", INT, DAY_MS, AtLeast(1),
        "How long a partition remembers an idle producer's sequence numbers.", dynamic=True),
    Setting("transaction.max.timeout.ms", INT, 15 * MINUTE_MS, AtLeast(1),
        "The longest transaction.timeout.ms that a producer may ask for."),
    Setting("transactional.id.expiration.ms", INT, 7 * DAY_MS, AtLeast(1),
        "How long the coordinator remembers an idle transactional id."),
    Setting("transaction.state.log.num.partitions", INT, 50, AtLeast(1),
        "Partitions of __transaction_state at its creation, on first use; later changes have no"
        " effect."),
    Setting("transaction.state.log.replication.factor", SHORT, 3, AtLeast(1),
        "Replicas of __transaction_state in Kafka.", effect=NONE),
    Setting("transaction.state.log.min.isr", INT, 2, AtLeast(1),
        "min.insync.replicas of __transaction_state in Kafka.", effect=NONE),
    Setting("transaction.state.log.segment.bytes", INT, 100 * MIB, AtLeast(1),
        "segment.bytes of __transaction_state in Kafka.", effect=NONE),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10000, AtLeast(1),
        "How often the coordinator aborts transactions past their timeout."),
    Setting("transaction.remove.expired.transaction.cleanup.interval.ms", INT, HOUR_MS, AtLeast(1),
        "How often the coordinator removes expired transactional ids."),
    Setting("transaction.partition.verification.enable", BOOLEAN, True, ANY,
        "Kafka's switch for verifying a transaction's partitions with its coordinator (KIP-890);"
        " Tidelog always verifies them.", dynamic=True, effect=NONE),
)
# fmt: on
