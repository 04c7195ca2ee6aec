"""The settings that Kafka does not have."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Between, Setting
from tidelog.broker.settings.tables.columns import HOUR_MS, INT, LONG, MIB, MINUTE_MS
from tidelog.coordinator.cluster.records.settings import DELETE_GRACE_MS_MIN

# fmt: off
OWN_SETTINGS: tuple[Setting, ...] = (
    Setting("wal.linger.ms", INT, 5, AtLeast(0),
        "How long a WAL object waits for more records while others are being uploaded. Otherwise"
        " it waits at most as long for producers that have just been answered."),
    Setting("wal.object.max.bytes", INT, 8 * MIB, AtLeast(1),
        "The size at which a WAL object is uploaded without waiting; at most wal.buffer.max.bytes.",
        ),
    Setting("wal.uploads.in.flight.max", INT, 64, AtLeast(1),
        "WAL objects that are uploaded at a time. With fewer than the store's latency of a PUT over"
        " wal.linger.ms, an acknowledgement may take two PUTs."),
    Setting("wal.puts.per.second.max", INT, -1, AtLeast(-1),
        "WAL objects that a broker puts in a second, on average; full ones are exempt. An"
        " acknowledgement takes longer by at most 1 s divided by this. Puts that a quiet second"
        " saves may follow at once. 0: no limit. -1: 10 on S3; no limit in a directory, in memory,"
        " and on S3 with a plain HTTP endpoint."),
    Setting("wal.buffer.max.bytes", LONG, 64 * MIB, AtLeast(64 * 1024),
        "Bytes that wait for the WAL or are being uploaded; above it producers wait."),
    Setting("wal.checkpoint.interval.bytes", LONG, 256 * MIB, AtLeast(1),
        "WAL bytes between checkpoints: about the most that a restart replays."),
    Setting("wal.checkpoint.interval.slots", INT, 1_000, AtLeast(1),
        "WAL objects between checkpoints. A restart reads each object above the newest checkpoint"
        " twice, a little of its beginning and of its end, 64 and 128 at a time. A checkpoint above"
        " 2 MiB comes less often: one object for each 2 KiB of it."),
    Setting("merge.segment.bytes", LONG, 64 * MIB, AtLeast(1),
        "The size up to which small segments of a table are merged. A merged segment is built in"
        " memory."),
    Setting("roll.bytes", LONG, 128 * MIB, AtLeast(1),
        "Stored WAL bytes of a partition at which they go into the table; a topic's segment.bytes"
        " counts if it is less."),
    Setting("roll.age.ms", LONG, HOUR_MS, AtLeast(1),
        "How long the WAL keeps decided records of a partition that are too few for a roll by"
        " size; a topic's segment.ms counts if it is less."),
    Setting("roll.min.bytes", LONG, 8 * MIB, AtLeast(0),
        "Fewer stored bytes are not worth a file: they stay in the WAL until there are more, or"
        " until they are older than roll.age.ms."),
    Setting("roll.wal.max.bytes", LONG, 4096 * MIB, AtLeast(0),
        "Stored WAL bytes of all partitions that a broker leads. Above it, the largest partitions"
        " are rolled into their tables, if they are worth a file."),
    Setting("roll.spread.ms", LONG, 30_000, AtLeast(0),
        "The time over which due rolls are spread, so that producers hardly notice them. Each"
        " second, the broker sets the rate that finishes the due rolls in this time, at least 8 MiB"
        " a second. The maximum is an eighth of log.delete.grace.ms. Rolls that a client waits for,"
        " or that are an eighth older than their age allows, run at full speed. 0: all rolls do."),
    Setting("rebalance.moves.per.minute.max", INT, 6_000, AtLeast(1),
        "Partitions that a broker gives away in a minute to balance the cluster. A move takes a"
        " partition from its clients for some PUTs."),
    Setting("coordinator.snapshot.interval.records", INT, 10_000, AtLeast(1),
        "Records that a coordinator writes between snapshots of its state; the number of the"
        " state's rows counts if it is more. A starting coordinator reads at most so many again."),
    Setting("tail.cache.bytes", LONG, 256 * MIB, AtLeast(0),
        "Memory for the newest batches, which serve consumers at the end of the log."),
    Setting("read.cache.bytes", LONG, 128 * MIB, AtLeast(0),
        "Memory for bytes that are read back, for readers behind the newest batches: ranges of WAL"
        " objects, and record batches made of segments. Readers share it; up to half of it holds"
        " bytes read ahead."),
    Setting("segment.index.cache.bytes", LONG, 32 * MIB, AtLeast(0),
        "Memory for the footers of the last segments that were read."),
    Setting("decompressed.bytes.max", INT, 100 * MIB, AtLeast(1024),
        "The largest batch after decompression; a larger one is refused (MESSAGE_TOO_LARGE)."),
    Setting("large.batches.percent.max", INT, 50, Between(1, 100),
        "Share of the time in which the broker decompresses batches that grow beyond 1 MiB and 16"
        " times their size. Further ones wait; other batches do not."),
    Setting("large.batches.connection.percent.max", INT, 25, Between(1, 100),
        "Share of the time in which the broker decompresses such batches of one connection. Later"
        " requests of the connection wait too."),
    Setting("connection.requests.in.flight.max", INT, 1000, AtLeast(1),
        "Requests of one connection that are served at a time; further ones wait unread."),
    Setting("connection.requests.bytes.max", INT, 32 * MIB, AtLeast(1),
        "Bytes of one connection's requests that are served at a time; further requests wait"
        " unread. One request may be larger."),
    Setting("connection.answers.bytes.max", INT, MIB, AtLeast(64 * 1024),
        "Bytes of one connection's answers that its client has not taken. Above it the broker"
        " begins no further request. One answer may be larger."),
    Setting("queued.max.answer.bytes", LONG, 256 * MIB, AtLeast(MIB),
        "Bytes of answers that clients have not taken, over all connections. Near the limit,"
        " fetches get smaller answers. From half of it on, the broker closes connections that take"
        " their answers slowly."),
    Setting("file.descriptors.reserved", INT, 192, AtLeast(1),
        "File descriptors of the process that clients' connections may not use: for the store,"
        " HTTP and the worker process. The process's other descriptors (`ulimit -n`) limit the"
        " connections, as max.connections does."),
    Setting("request.receive.timeout.ms", INT, 5 * MINUTE_MS, AtLeast(1),
        "How long a request may take from its first byte to its last. Time in which the broker"
        " does not read does not count."),
    Setting("request.receive.grace.ms", INT, 10_000, AtLeast(1),
        "How long a begun request may send no byte."),
    Setting("request.receive.rate.min.bytes", INT, 16 * 1024, AtLeast(1),
        "The average rate, in bytes a second, at which a request must arrive after"
        " request.receive.grace.ms. A slower connection is closed."),
    Setting("shutdown.timeout.ms", INT, 10000, AtLeast(0),
        "How long a stopping broker waits for requests that it has accepted."),
    Setting("log.delete.grace.ms", LONG, 600000, AtLeast(DELETE_GRACE_MS_MIN),
        "How long the broker keeps an unreferenced object before it deletes it. A query that takes"
        " longer may miss objects. All brokers need the same value. Below six minutes, a broker may"
        " end itself if the store does not answer for half as long."),
    Setting("log.collect.interval.ms", LONG, 60_000, AtLeast(1),
        "How often a broker shortens its WAL: it opens inherited partitions, merges WAL objects,"
        " writes a checkpoint, and looks for unreferenced objects."),
    Setting("log.collect.tables.interval.ms", LONG, 1_800_000, AtLeast(1),
        "How often one broker looks for segments that no table lists, and for tables of deleted"
        " topics. It lists all segments and reads all tables for that."),
    Setting("wal.objects.max", INT, 128, AtLeast(2),
        "The number of objects below the newest checkpoint with records of a broker's partitions."
        " Above it, the broker merges the emptiest ones, but not those that are mostly full."),
    Setting("staged.retention.ms", LONG, 24 * HOUR_MS, AtLeast(1),
        "How long batches staged by an exactly-once sink may be adopted. All brokers need the same"
        " value. Unreferenced ones are kept until their batch is committed, or for at least twice"
        " as long."),
)
# fmt: on
