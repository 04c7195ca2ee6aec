"""The settings that Kafka does not have."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Between, Setting, SettingType
from tidelog.broker.settings.tables.brokers import MIB
from tidelog.broker.settings.tables.topics import HOUR_MS, MINUTE_MS
from tidelog.coordinator.cluster.records.settings import DELETE_GRACE_MS_MIN


def _own(name: str, kind: SettingType, default: int, low: int, doc: str) -> Setting:
    return Setting(name=name, kind=kind, default=default, valid=AtLeast(low), doc=doc)


def _percent(name: str, default: int, doc: str) -> Setting:
    return Setting(name=name, kind=SettingType.INT, default=default, valid=Between(1, 100), doc=doc)


OWN_SETTINGS: tuple[Setting, ...] = (
    _own(
        "wal.linger.ms",
        SettingType.INT,
        5,
        0,
        "How long a WAL object waits for more records while others are being uploaded, or at most"
        " for producers who have just been answered.",
    ),
    _own(
        "wal.object.max.bytes",
        SettingType.INT,
        8 * MIB,
        1,
        "The size at which a WAL object is uploaded without waiting; at most wal.buffer.max.bytes.",
    ),
    _own(
        "wal.uploads.in.flight.max",
        SettingType.INT,
        64,
        1,
        "WAL objects that are uploaded at a time. With fewer than the store's latency of a PUT over"
        " wal.linger.ms, an acknowledgement may take two PUTs.",
    ),
    _own(
        "wal.puts.per.second.max",
        SettingType.INT,
        -1,
        -1,
        "WAL objects that a broker puts a second, on average; full ones do not wait for it. An"
        " acknowledgement takes longer by at most one interval: 1 s over this. What a quiet second"
        " saves can go at once. 0: no limit. -1: 10 on S3, no limit in a directory, in memory and"
        " where S3's endpoint is plain HTTP.",
    ),
    _own(
        "wal.buffer.max.bytes",
        SettingType.LONG,
        64 * MIB,
        64 * 1024,
        "Bytes that wait for the WAL or are being uploaded; above it producers wait.",
    ),
    _own(
        "wal.checkpoint.interval.bytes",
        SettingType.LONG,
        256 * MIB,
        1,
        "WAL bytes between checkpoints: what a restart has to replay at most, about.",
    ),
    _own(
        "wal.checkpoint.interval.slots",
        SettingType.INT,
        1_000,
        1,
        "WAL objects between checkpoints: a restart reads each one above the newest checkpoint"
        " twice, a little of its beginning and of its end, 64 and 128 at a time. A checkpoint of"
        " more than 2 MiB comes less often: one object for each 2 KiB of it.",
    ),
    _own(
        "merge.segment.bytes",
        SettingType.LONG,
        64 * MIB,
        1,
        "The size up to which small segments of a table are merged. One is written in memory.",
    ),
    _own(
        "roll.bytes",
        SettingType.LONG,
        128 * MIB,
        1,
        "WAL bytes of a partition, as stored, at which they go into the table; a topic's"
        " segment.bytes counts if it is less.",
    ),
    _own(
        "roll.age.ms",
        SettingType.LONG,
        HOUR_MS,
        1,
        "How long the WAL keeps a partition's decided records that are not enough for a roll by"
        " size; a topic's segment.ms counts if it is less.",
    ),
    _own(
        "roll.min.bytes",
        SettingType.LONG,
        8 * MIB,
        0,
        "What is less, as stored, is not worth a file: it is carried over until there is more, or"
        " it is older than roll.age.ms.",
    ),
    _own(
        "roll.wal.max.bytes",
        SettingType.LONG,
        4096 * MIB,
        0,
        "WAL bytes of all partitions that a broker leads, as stored; above it the largest go into"
        " the table, as far as they are worth a file.",
    ),
    _own(
        "roll.spread.ms",
        SettingType.LONG,
        30_000,
        0,
        "How long what is due for a roll may take, so that producers hardly feel it: the rate is"
        " that which would have all that is due done in this time, renewed each second, at least"
        " 8 MiB a second. More than an eighth of log.delete.grace.ms is the same as that. What"
        " somebody waits for, or what is an eighth older than its age allows, goes as fast as can"
        " be. 0: all does.",
    ),
    _own(
        "coordinator.snapshot.interval.records",
        SettingType.INT,
        10_000,
        1,
        "Records that a coordinator writes between snapshots of its state, or as many as the state"
        " has rows if that is more: what it has to read again at most when it starts.",
    ),
    _own(
        "tail.cache.bytes",
        SettingType.LONG,
        256 * MIB,
        0,
        "Memory for the newest batches, from which consumers at the end of the log are served.",
    ),
    _own(
        "read.cache.bytes",
        SettingType.LONG,
        128 * MIB,
        0,
        "Memory for what was read back, for readers behind the newest batches: ranges of WAL"
        " objects, and record batches made of segments. Shared between readers, and read ahead of"
        " them up to a half.",
    ),
    _own(
        "segment.index.cache.bytes",
        SettingType.LONG,
        32 * MIB,
        0,
        "Memory for the footers of the segments that were read last.",
    ),
    _own(
        "decompressed.bytes.max",
        SettingType.INT,
        100 * MIB,
        1024,
        "The largest batch after decompression; a larger one is refused (MESSAGE_TOO_LARGE).",
    ),
    _percent(
        "large.batches.percent.max",
        50,
        "Share of the time in which batches are decompressed that grow beyond 1 MiB and 16 times"
        " their size. More of them wait; other batches do not.",
    ),
    _percent(
        "large.batches.connection.percent.max",
        25,
        "Share of the time in which such batches of one connection are decompressed. What the"
        " connection sends behind them waits too.",
    ),
    _own(
        "connection.requests.in.flight.max",
        SettingType.INT,
        1000,
        1,
        "Requests of one connection that are served at a time; more wait unread.",
    ),
    _own(
        "connection.requests.bytes.max",
        SettingType.INT,
        32 * MIB,
        1,
        "Bytes of one connection's requests that are served at a time; more wait unread. One"
        " request may be larger.",
    ),
    _own(
        "connection.answers.bytes.max",
        SettingType.INT,
        MIB,
        64 * 1024,
        "Bytes of one connection's answers that its client has not taken; above it no further"
        " request is begun. One answer may be larger.",
    ),
    _own(
        "queued.max.answer.bytes",
        SettingType.LONG,
        256 * MIB,
        MIB,
        "Bytes of answers that clients have not taken, over all connections. Near it fetches are"
        " answered with less, and from half of it on connections that take their answers slowly are"
        " closed.",
    ),
    _own(
        "file.descriptors.reserved",
        SettingType.INT,
        192,
        1,
        "File descriptors of the process that are kept from clients' connections: for the store,"
        " HTTP and the worker process. What the process may have beyond them (`ulimit -n`) bounds"
        " the connections, as max.connections does.",
    ),
    _own(
        "request.receive.timeout.ms",
        SettingType.INT,
        5 * MINUTE_MS,
        1,
        "How long a request may take from its first byte to its last. Time in which the broker does"
        " not read does not count.",
    ),
    _own(
        "request.receive.grace.ms",
        SettingType.INT,
        10_000,
        1,
        "How long nothing may come of a request that has begun.",
    ),
    _own(
        "request.receive.rate.min.bytes",
        SettingType.INT,
        16 * 1024,
        1,
        "Bytes a second at which a request has to come on average, beyond"
        " request.receive.grace.ms. A slower connection is closed.",
    ),
    _own(
        "shutdown.timeout.ms",
        SettingType.INT,
        10000,
        0,
        "How long a stopping broker waits for requests that it has accepted.",
    ),
    _own(
        "log.delete.grace.ms",
        SettingType.LONG,
        600000,
        DELETE_GRACE_MS_MIN,
        "How long an object that nothing refers to is kept before it is deleted. A query that takes"
        " longer may miss objects. The same for all brokers. A broker to which the store does not"
        " answer for half as long ends itself.",
    ),
    _own(
        "log.collect.interval.ms",
        SettingType.LONG,
        60_000,
        1,
        "How often a broker keeps its WAL short: partitions taken over are opened, WAL objects"
        " merged, a checkpoint written, and what nothing refers to is looked for.",
    ),
    _own(
        "log.collect.tables.interval.ms",
        SettingType.LONG,
        1_800_000,
        1,
        "How often one broker looks for segments that no table lists and for tables of deleted"
        " topics; that takes a listing of all segments and a reading of all tables.",
    ),
    _own(
        "wal.objects.max",
        SettingType.INT,
        128,
        2,
        "With more objects below the newest checkpoint than this that hold records of a broker's"
        " partitions, the emptiest are merged; those that are full for the most part are not.",
    ),
    _own(
        "staged.retention.ms",
        SettingType.LONG,
        24 * HOUR_MS,
        1,
        "How long what an exactly-once sink has staged may be adopted; the same on all brokers."
        " What nobody refers to is kept until its batch is committed, or for at least twice that.",
    ),
    _own(
        "http.connections.max",
        SettingType.INT,
        64,
        2,
        "Connections that the HTTP server (/healthz, /metrics) serves at a time. One more takes the"
        " place of the one that has waited longest without a whole request.",
    ),
    _own(
        "http.request.timeout.ms",
        SettingType.INT,
        10_000,
        1,
        "How long an HTTP client may take to send its request and to take the answer.",
    ),
)
