"""The settings of the layers below the broker, made from the broker's settings."""

from __future__ import annotations

from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.coordinator.cluster.records.settings import ClusterSettings, append_timeout_ms_within
from tidelog.records.batch import TimestampType
from tidelog.records.compression import Compression
from tidelog.records.validate.rules import BatchLimits
from tidelog.storage.stores.location import bills_requests
from tidelog.wal.settings import WalSettings

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""The codecs of `compression.type`. "producer" is not here: it keeps the producer's codec."""
_LEVELS = {
    Compression.GZIP: "compression.gzip.level",
    Compression.LZ4: "compression.lz4.level",
    Compression.ZSTD: "compression.zstd.level",
}
BILLED_PUTS_A_SECOND = 10
"""The default for S3, which bills each PUT; the interval is about as long as a PUT takes."""


def cluster_settings(settings: BrokerSettings) -> ClusterSettings:
    """The cluster's timings from a broker's settings."""
    delete_grace_ms = settings.integer("log.delete.grace.ms")
    return ClusterSettings(
        session_timeout_ms=settings.integer("broker.session.timeout.ms"),
        heartbeat_interval_ms=settings.integer("broker.heartbeat.interval.ms"),
        delete_grace_ms=delete_grace_ms,
        append_timeout_ms=append_timeout_ms_within(delete_grace_ms),
    )


def wal_settings(settings: BrokerSettings, store_url: str) -> WalSettings:
    """The WAL's settings from the settings of a broker on this store."""
    puts_a_second_max = settings.integer("wal.puts.per.second.max")
    if puts_a_second_max < 0:
        puts_a_second_max = BILLED_PUTS_A_SECOND if bills_requests(store_url) else 0
    return WalSettings(
        linger_ms=settings.integer("wal.linger.ms"),
        object_bytes_max=settings.integer("wal.object.max.bytes"),
        uploads_in_flight_max=settings.integer("wal.uploads.in.flight.max"),
        puts_a_second_max=puts_a_second_max,
        buffer_bytes_max=settings.integer("wal.buffer.max.bytes"),
        checkpoint_interval_bytes=settings.integer("wal.checkpoint.interval.bytes"),
        checkpoint_interval_slots=settings.integer("wal.checkpoint.interval.slots"),
    )


def append_limits(config: TopicConfig, settings: BrokerSettings) -> BatchLimits:
    """The limits on a topic's batches, and the form in which they are stored."""
    codec = _CODECS.get(config.text("compression.type"))
    level = _LEVELS.get(codec) if codec is not None else None
    log_append_time = config.text("message.timestamp.type") == "LogAppendTime"
    return BatchLimits(
        batch_bytes_max=config.integer("max.message.bytes"),
        decompressed_bytes_max=settings.integer("decompressed.bytes.max"),
        keys_required="compact" in config.items_of("cleanup.policy"),
        timestamp_type=TimestampType.LOG_APPEND_TIME
        if log_append_time
        else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=config.integer("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=config.integer("message.timestamp.after.max.ms"),
        compression=codec,
        compression_level=config.integer(level) if level is not None else None,
    )
