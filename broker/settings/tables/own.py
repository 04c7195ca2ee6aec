"""The settings that Kafka does not have."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Between, Setting
from tidelog.broker.settings.tables.columns import HOUR_MS, INT, LONG, MIB, MINUTE_MS
from tidelog.coordinator.cluster.records.settings import DELETE_GRACE_MS_MIN

# fmt: off
OWN_SETTINGS: tuple[Setting, ...] = (
    Setting("wal.linger.ms", INT, 5, AtLeast(0),
        "How long a WAL object waits for more records while others are being uploaded, or at most"
        " for producers who have just been answered."),
    Setting("wal.object.max.bytes", INT, 8 * MIB, AtLeast(1),
        "The size at which a WAL object is uploaded without waiting; at most wal.buffer.max.bytes.",
        ),
    Setting("wal.uploads.in.flight.max", INT, 64, AtLeast(1),
        "WAL objects that are uploaded at a time. With fewer than the store's latency of a PUT over"
        " wal.linger.ms, an acknowledgement may take two PUTs."),
    Setting("wal.puts.per.second.max", INT, -1, AtLeast(-1),
        "WAL objects that a broker puts a second, on average; full ones do not wait for it. An"
        " acknowledgement takes longer by at most one interval: 1 s over this. What a quiet second"
        " saves can go at once. 0: no limit. -1: 10 on S3, no limit in a directory, in memory and"
        " where S3's endpoint is plain HTTP."),
    Setting("wal.buffer.max.bytes", LONG, 64 * MIB, AtLeast(64 * 1024),
        "Bytes that wait for the WAL or are being uploaded; above it producers wait."),
    Setting("wal.checkpoint.interval.bytes", LONG, 256 * MIB, AtLeast(1),
        "WAL bytes between checkpoints: what a restart has to replay at most, about."),
    Setting("wal.checkpoint.interval.slots", INT, 1_000, AtLeast(1),
        "WAL objects between checkpoints: a restart reads each one above the newest checkpoint"
        " twice, a little of its beginning and of its end, 64 and 128 at a time. A checkpoint of"
        " more than 2 MiB comes less often: one object for each 2 KiB of it."),
    Setting("merge.segment.bytes", LONG, 64 * MIB, AtLeast(1),
        "The size up to which small segments of a table are merged. One is written in memory."),
    Setting("roll.bytes", LONG, 128 * MIB, AtLeast(1),
        "WAL bytes of a partition, as stored, at which they go into the table; a topic's"
        " segment.bytes counts if it is less."),
    Setting("roll.age.ms", LONG, HOUR_MS, AtLeast(1),
        "How long the WAL keeps a partition's decided records that are not enough for a roll by"
        " size; a topic's segment.ms counts if it is less."),
    Setting("roll.min.bytes", LONG, 8 * MIB, AtLeast(0),
        "What is less, as stored, is not worth a file: it is carried over until there is more, or"
        " it is older than roll.age.ms."),
    Setting("roll.wal.max.bytes", LONG, 4096 * MIB, AtLeast(0),
        "WAL bytes of all partitions that a broker leads, as stored; above it the largest go into"
        " the table, as far as they are worth a file."),
    Setting("roll.spread.ms", LONG, 30_000, AtLeast(0),
        "How long what is due for a roll may take, so that producers hardly feel it: the rate is"
        " that which would have all that is due done in this time, renewed each second, at least 8"
        " MiB a second. More than an eighth of log.delete.grace.ms is the same as that. What"
        " somebody waits for, or what is an eighth older than its age allows, goes as fast as can"
        " be. 0: all does."),
    Setting("coordinator.snapshot.interval.records", INT, 10_000, AtLeast(1),
        "Records that a coordinator writes between snapshots of its state, or as many as the state"
        " has rows if that is more: what it has to read again at most when it starts."),
    Setting("tail.cache.bytes", LONG, 256 * MIB, AtLeast(0),
        "Memory for the newest batches, from which consumers at the end of the log are served."),
    Setting("read.cache.bytes", LONG, 128 * MIB, AtLeast(0),
        "Memory for what was read back, for readers behind the newest batches: ranges of WAL"
        " objects, and record batches made of segments. Shared between readers, and read ahead of"
        " them up to a half."),
    Setting("segment.index.cache.bytes", LONG, 32 * MIB, AtLeast(0),
        "Memory for the footers of the segments that were read last."),
    Setting("decompressed.bytes.max", INT, 100 * MIB, AtLeast(1024),
        "The largest batch after decompression; a larger one is refused (MESSAGE_TOO_LARGE)."),
    Setting("large.batches.percent.max", INT, 50, Between(1, 100),
        "Share of the time in which batches are decompressed that grow beyond 1 MiB and 16 times"
        " their size. More of them wait; other batches do not."),
    Setting("large.batches.connection.percent.max", INT, 25, Between(1, 100),
        "Share of the time in which such batches of one connection are decompressed. What the"
        " connection sends behind them waits too."),
    Setting("connection.requests.in.flight.max", INT, 1000, AtLeast(1),
        "Requests of one connection that are served at a time; more wait unread."),
    Setting("connection.requests.bytes.max", INT, 32 * MIB, AtLeast(1),
        "Bytes of one connection's requests that are served at a time; more wait unread. One"
        " request may be larger."),
    Setting("connection.answers.bytes.max", INT, MIB, AtLeast(64 * 1024),
        "Bytes of one connection's answers that its client has not taken; above it no further"
        " request is begun. One answer may be larger."),
    Setting("queued.max.answer.bytes", LONG, 256 * MIB, AtLeast(MIB),
        "Bytes of answers that clients have not taken, over all connections. Near it fetches are"
        " answered with less, and from half of it on connections that take their answers slowly are"
        " closed."),
    Setting("file.descriptors.reserved", INT, 192, AtLeast(1),
        "File descriptors of the process that are kept from clients' connections: for the store,"
        " HTTP and the worker process. What the process may have beyond them (`ulimit -n`) bounds"
        " the connections, as max.connections does."),
    Setting("request.receive.timeout.ms", INT, 5 * MINUTE_MS, AtLeast(1),
        "How long a request may take from its first byte to its last. Time in which the broker does"
        " not read does not count."),
    Setting("request.receive.grace.ms", INT, 10_000, AtLeast(1),
        "How long nothing may come of a request that has begun."),
    Setting("request.receive.rate.min.bytes", INT, 16 * 1024, AtLeast(1),
        "Bytes a second at which a request has to come on average, beyond request.receive.grace.ms."
        " A slower connection is closed."),
    Setting("shutdown.timeout.ms", INT, 10000, AtLeast(0),
        "How long a stopping broker waits for requests that it has accepted."),
    Setting("log.delete.grace.ms", LONG, 600000, AtLeast(DELETE_GRACE_MS_MIN),
        "How long an object that nothing refers to is kept before it is deleted. A query that takes"
        " longer may miss objects. The same for all brokers. A broker to which the store does not"
        " answer for half as long ends itself."),
    Setting("log.collect.interval.ms", LONG, 60_000, AtLeast(1),
        "How often a broker keeps its WAL short: partitions taken over are opened, WAL objects"
        " merged, a checkpoint written, and what nothing refers to is looked for."),
    Setting("log.collect.tables.interval.ms", LONG, 1_800_000, AtLeast(1),
        "How often one broker looks for segments that no table lists and for tables of deleted"
        " topics; that takes a listing of all segments and a reading of all tables."),
    Setting("wal.objects.max", INT, 128, AtLeast(2),
        "With more objects below the newest checkpoint than this that hold records of a broker's"
        " partitions, the emptiest are merged; those that are full for the most part are not."),
    Setting("staged.retention.ms", LONG, 24 * HOUR_MS, AtLeast(1),
        "How long what an exactly-once sink has staged may be adopted; the same on all brokers."
        " What nobody refers to is kept until its batch is committed, or for at least twice that."),
    Setting("http.connections.max", INT, 64, AtLeast(2),
        "Connections that the HTTP server (/healthz, /metrics) serves at a time. One more takes the"
        " place of the one that has waited longest without a whole request."),
    Setting("http.request.timeout.ms", INT, 10_000, AtLeast(1),
        "How long an HTTP client may take to send its request and to take the answer."),
)
# fmt: on
