"""The settings of brokers that Kafka has too, with its names, types, defaults and rules."""

from __future__ import annotations

import re

from tidelog.broker.settings.kinds import INT_MAX, AtLeast, Matching, Setting
from tidelog.broker.settings.tables.columns import (
    ANY,
    BOOLEAN,
    INT,
    LONG,
    MIB,
    MINUTE_MS,
    NONE,
    STRING,
)

_CONNECTION_OVERRIDES = re.compile(r"([^,\s]+:[0-9]{1,9}(,[^,\s]+:[0-9]{1,9})*)?")


# fmt: off
SERVER_SETTINGS: tuple[Setting, ...] = (
    Setting("broker.rack", STRING, None, ANY,
        "The rack or zone of the broker. It is registered with the broker."),
    Setting("socket.request.max.bytes", INT, 100 * MIB, AtLeast(1),
        "The largest request; a larger one closes the connection."),
    Setting("max.connections", INT, INT_MAX, AtLeast(0),
        "Connections that the broker serves. At the limit, a new one replaces an idle one, or is"
        " closed at once.", dynamic=True),
    Setting("max.connections.per.ip", INT, INT_MAX, AtLeast(0),
        "Connections from one address; further ones are closed at once.", dynamic=True),
    Setting("max.connections.per.ip.overrides", STRING, "",
        Matching(_CONNECTION_OVERRIDES, "address:connections, separated by commas"),
        "max.connections.per.ip for single addresses, as address:connections.", dynamic=True),
    Setting("connections.max.idle.ms", LONG, 10 * MINUTE_MS, ANY,
        "A connection without a request for this long is closed; negative means never."),
    Setting("queued.max.request.bytes", LONG, 256 * MIB, AtLeast(-1),
        "Bytes of requests that are being served, over all connections. Above it the broker stops"
        " reading. -1 means no limit.", kafka_default="-1"),
    Setting("fetch.max.bytes", INT, 55 * MIB, AtLeast(1024),
        "The largest answer to a fetch, regardless of the client's limit."),
    Setting("max.incremental.fetch.session.cache.slots", INT, 1000, AtLeast(0),
        "Fetch sessions (KIP-227) that the broker remembers; further clients send full fetches."),
    Setting("max.request.partition.size.limit", INT, 2000, AtLeast(1),
        "Partitions in one answer to DescribeTopicPartitions."),
    Setting("max.connection.creation.rate", INT, INT_MAX, AtLeast(0),
        "New connections a second. The broker accepts further ones later. That of a listener holds"
        " beside the broker's, and alone for a listener between brokers.", dynamic=True,
        per_listener=True),
    Setting("queued.max.requests", INT, 500, AtLeast(1),
        "Requests that Kafka's threads queue.", effect=NONE),
    Setting("socket.send.buffer.bytes", INT, 102400, ANY,
        "Kafka's SO_SNDBUF; Tidelog uses the system's.", effect=NONE),
    Setting("socket.receive.buffer.bytes", INT, 102400, ANY,
        "Kafka's SO_RCVBUF; Tidelog uses the system's.", effect=NONE),
    Setting("socket.listen.backlog.size", INT, 50, AtLeast(1),
        "Kafka's accept backlog.", effect=NONE),
    Setting("num.network.threads", INT, 3, AtLeast(1),
        "Kafka's threads.", dynamic=True, effect=NONE),
    Setting("num.io.threads", INT, 8, AtLeast(1), "Kafka's threads.", dynamic=True, effect=NONE),
    Setting("background.threads", INT, 10, AtLeast(1),
        "Kafka's threads.", dynamic=True, effect=NONE),
    Setting("request.timeout.ms", INT, 30000, AtLeast(1),
        "How long a broker waits for another broker's answer. Then it closes the connection."),
    Setting("socket.connection.setup.timeout.ms", LONG, 10000, AtLeast(1),
        "How long a broker tries to connect to another broker."),
    Setting("controlled.shutdown.enable", BOOLEAN, True, ANY,
        "Whether a broker that is asked to end gives its partitions to the others first. It always"
        " flushes."),
)

REPLICATION_SETTINGS: tuple[Setting, ...] = (
    Setting("default.replication.factor", INT, 1, ANY,
        "The default replication factor in Kafka; Tidelog reports one replica.",
        effect=NONE),
    Setting("num.replica.fetchers", INT, 1, ANY, "Kafka's threads.", dynamic=True, effect=NONE),
    Setting("num.recovery.threads.per.data.dir", INT, 2, AtLeast(1),
        "Kafka's threads.", dynamic=True, effect=NONE),
    Setting("replica.lag.time.max.ms", LONG, 30000, ANY,
        "When a replica is out of sync.", effect=NONE),
    Setting("replica.socket.timeout.ms", INT, 30000, ANY, "Replication's timeout.", effect=NONE),
    Setting("replica.socket.receive.buffer.bytes", INT, 65536, ANY,
        "Replication's buffer.", effect=NONE),
    Setting("replica.fetch.max.bytes", INT, MIB, AtLeast(0),
        "Replication's bytes for each partition.", effect=NONE),
    Setting("replica.fetch.min.bytes", INT, 1, ANY, "Replication's smallest answer.", effect=NONE),
    Setting("replica.fetch.wait.max.ms", INT, 500, ANY, "Replication's longest wait.", effect=NONE),
    Setting("replica.fetch.backoff.ms", INT, 1000, AtLeast(0),
        "Replication's back-off.", effect=NONE),
    Setting("replica.fetch.response.max.bytes", INT, 10 * MIB, AtLeast(0),
        "Replication's largest answer.", effect=NONE),
    Setting("replica.high.watermark.checkpoint.interval.ms", LONG, 5000, ANY,
        "How often Kafka saves high watermarks.", effect=NONE),
    Setting("auto.leader.rebalance.enable", BOOLEAN, True, ANY,
        "Whether the broker gives partitions away when it has more than its fair share."),
    Setting("leader.imbalance.check.interval.seconds", LONG, 300, AtLeast(1),
        "How often the broker looks at its share. It also looks when brokers come or go."),
    Setting("leader.imbalance.per.broker.percentage", INT, 10, AtLeast(0),
        "By how much a broker may exceed its fair share before it gives partitions away."),
)

CLUSTER_SETTINGS: tuple[Setting, ...] = (
    Setting("broker.heartbeat.interval.ms", INT, 2000, AtLeast(1),
        "How often a broker renews its lease; at most half of broker.session.timeout.ms, and 2000"
        " below it."),
    Setting("broker.session.timeout.ms", INT, 9000, AtLeast(1),
        "Other brokers may fence a broker whose lease has not changed for this long."),
)
# fmt: on
