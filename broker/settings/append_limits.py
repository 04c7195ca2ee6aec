"""The limits that a topic's settings put on producers' batches."""

from __future__ import annotations

from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.records.batch import TimestampType
from tidelog.records.compression import Compression
from tidelog.records.validate.rules import BatchLimits

_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
"""The codecs of `compression.type`; "producer", which keeps the producer's codec, is not here."""
_LEVELS = {
    Compression.GZIP: "compression.gzip.level",
    Compression.LZ4: "compression.lz4.level",
    Compression.ZSTD: "compression.zstd.level",
}


def append_limits(config: TopicConfig, settings: BrokerSettings) -> BatchLimits:
    """The limits of a topic with these effective settings, and the form in which it is stored."""
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
