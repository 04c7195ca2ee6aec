"""The settings of brokers that Kafka has too: its names, types, defaults and rules."""

from __future__ import annotations

import re

from tidelog.broker.settings.kinds import (
    INT_MAX,
    AtLeast,
    Effect,
    Matching,
    Setting,
    SettingType,
    without_effect,
)
from tidelog.broker.settings.tables.topics import (
    MINUTE_MS,
)

MIB = 1024 * 1024

_CONNECTION_OVERRIDES = re.compile(r"([^,\s]+:[0-9]{1,9}(,[^,\s]+:[0-9]{1,9})*)?")


SERVER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="broker.rack",
        kind=SettingType.STRING,
        default=None,
        effect=Effect.NONE,
        doc="The rack or zone of the broker, in Kafka.",
    ),
    Setting(
        name="socket.request.max.bytes",
        kind=SettingType.INT,
        default=100 * MIB,
        valid=AtLeast(1),
        doc="The largest request; a larger one closes the connection.",
    ),
    Setting(
        name="max.connections",
        kind=SettingType.INT,
        default=INT_MAX,
        valid=AtLeast(0),
        dynamic=True,
        doc="Connections that the broker serves. One more takes the place of one that is idle, or"
        " is closed at once.",
    ),
    Setting(
        name="max.connections.per.ip",
        kind=SettingType.INT,
        default=INT_MAX,
        valid=AtLeast(0),
        dynamic=True,
        doc="Connections from one address; one more is closed at once.",
    ),
    Setting(
        name="max.connections.per.ip.overrides",
        kind=SettingType.STRING,
        default="",
        valid=Matching(_CONNECTION_OVERRIDES, "address:connections, separated by commas"),
        dynamic=True,
        doc="max.connections.per.ip for single addresses, as address:connections.",
    ),
    Setting(
        name="connections.max.idle.ms",
        kind=SettingType.LONG,
        default=10 * MINUTE_MS,
        doc="A connection without a request for this long is closed; negative means never.",
    ),
    Setting(
        name="queued.max.request.bytes",
        kind=SettingType.LONG,
        default=256 * MIB,
        kafka_default="-1",
        valid=AtLeast(-1),
        doc="Bytes of requests that are being served, over all connections; above it the broker "
        "stops reading. -1 means no limit.",
    ),
    Setting(
        name="fetch.max.bytes",
        kind=SettingType.INT,
        default=55 * MIB,
        valid=AtLeast(1024),
        doc="The largest answer to a fetch, whatever the client asks for.",
    ),
    Setting(
        name="max.incremental.fetch.session.cache.slots",
        kind=SettingType.INT,
        default=1000,
        valid=AtLeast(0),
        doc="Fetch sessions (KIP-227) that are remembered; beyond them clients send full fetches.",
    ),
    Setting(
        name="max.request.partition.size.limit",
        kind=SettingType.INT,
        default=2000,
        valid=AtLeast(1),
        doc="Partitions in one answer to DescribeTopicPartitions.",
    ),
    without_effect(
        "max.connection.creation.rate",
        SettingType.INT,
        INT_MAX,
        "New connections a second in Kafka.",
        0,
        dynamic=True,
    ),
    without_effect(
        "queued.max.requests", SettingType.INT, 500, "Requests that Kafka's threads queue.", 1
    ),
    without_effect(
        "socket.send.buffer.bytes",
        SettingType.INT,
        102400,
        "Kafka's SO_SNDBUF; the system's holds here.",
    ),
    without_effect(
        "socket.receive.buffer.bytes",
        SettingType.INT,
        102400,
        "Kafka's SO_RCVBUF; the system's holds here.",
    ),
    without_effect("socket.listen.backlog.size", SettingType.INT, 50, "Kafka's accept backlog.", 1),
    without_effect("num.network.threads", SettingType.INT, 3, "Kafka's threads.", 1, dynamic=True),
    without_effect("num.io.threads", SettingType.INT, 8, "Kafka's threads.", 1, dynamic=True),
    without_effect("background.threads", SettingType.INT, 10, "Kafka's threads.", 1, dynamic=True),
    without_effect("request.timeout.ms", SettingType.INT, 30000, "Kafka's own requests' timeout."),
    without_effect(
        "controlled.shutdown.enable",
        SettingType.BOOLEAN,
        True,
        "Kafka's orderly shutdown; here SIGTERM always flushes.",
    ),
)

REPLICATION_SETTINGS: tuple[Setting, ...] = (
    without_effect(
        "default.replication.factor",
        SettingType.INT,
        1,
        "The replication factor that is assumed where none is given; one replica is reported.",
    ),
    without_effect("num.replica.fetchers", SettingType.INT, 1, "Kafka's threads.", dynamic=True),
    without_effect(
        "num.recovery.threads.per.data.dir", SettingType.INT, 2, "Kafka's threads.", 1, dynamic=True
    ),
    without_effect(
        "replica.lag.time.max.ms", SettingType.LONG, 30000, "When a replica is out of sync."
    ),
    without_effect("replica.socket.timeout.ms", SettingType.INT, 30000, "Replication's timeout."),
    without_effect(
        "replica.socket.receive.buffer.bytes", SettingType.INT, 65536, "Replication's buffer."
    ),
    without_effect(
        "replica.fetch.max.bytes", SettingType.INT, MIB, "Replication's batch of a part.", 0
    ),
    without_effect("replica.fetch.min.bytes", SettingType.INT, 1, "Replication's smallest answer."),
    without_effect(
        "replica.fetch.wait.max.ms", SettingType.INT, 500, "Replication's longest wait."
    ),
    without_effect("replica.fetch.backoff.ms", SettingType.INT, 1000, "Replication's back-off.", 0),
    without_effect(
        "replica.fetch.response.max.bytes",
        SettingType.INT,
        10 * MIB,
        "Replication's largest answer.",
        0,
    ),
    without_effect(
        "replica.high.watermark.checkpoint.interval.ms",
        SettingType.LONG,
        5000,
        "How often Kafka saves high watermarks.",
    ),
    without_effect(
        "auto.leader.rebalance.enable", SettingType.BOOLEAN, True, "Preferred leaders in Kafka."
    ),
    without_effect(
        "leader.imbalance.check.interval.seconds",
        SettingType.LONG,
        300,
        "Preferred leaders in Kafka.",
        1,
    ),
    without_effect(
        "leader.imbalance.per.broker.percentage", SettingType.INT, 10, "Preferred leaders in Kafka."
    ),
)

CLUSTER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="broker.heartbeat.interval.ms",
        kind=SettingType.INT,
        default=2000,
        valid=AtLeast(1),
        doc="How often a broker renews its lease; at most half of broker.session.timeout.ms, and"
        " 2000 below it.",
    ),
    Setting(
        name="broker.session.timeout.ms",
        kind=SettingType.INT,
        default=9000,
        valid=AtLeast(1),
        doc="A broker whose lease has not changed for this long may be fenced by others.",
    ),
)
