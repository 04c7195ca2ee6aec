"""Committed segments as plain files, for Spark's own Parquet reader and other engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from tidelog.bucket.views.bucket import Bucket
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.options.store_address import store_url_of
from tidelog.spark_source.session import Session
from tidelog.storage.segment.segment import table_prefix
from tidelog.storage.stores.s3.s3_address import parse_s3_url

SEGMENT_SCHEMA = (
    "offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>, producer_id bigint, producer_epoch int,"
    " transaction bigint"
)
"""The files' columns as DDL, for `spark.read.schema(...)`. Without it Spark first reads a footer.
"""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A Parquet file of one partition's committed records, by offset."""

    topic: str
    partition: int
    path: str
    """Path for Hadoop's file systems: s3a://bucket/key or file:///path."""
    size_bytes: int
    rows: int
    first_offset: int
    last_offset: int
    """Offset of the last row, inclusive."""
    log_start: int
    """Offset below which rows are deleted and must be skipped. Only the first file has such rows.
    """


def committed_files(store: str, *topics: str, **options: str) -> list[CommittedFile]:
    """The current files of some topics, by topic and offset.

    Committed records that are not in the tables yet are missing. A file that compaction or
    retention removes later stays for `log.delete.grace.ms`.

    `options` are the source's `store.` options without that prefix, such as endpoint and region.
    Raises NoSuchTopic, InvalidConfiguration, CorruptObject, StoreError.
    """
    with _session(store, options) as session:
        return session.run(_files(session.bucket, topics))


def table_path(store: str, topic: str, **options: str) -> str:
    """The path of a topic's Delta Lake table, for other engines. Raises as `committed_files`."""
    with _session(store, options) as session:
        session.run(session.bucket.refresh())
        topic_id = session.bucket.topic(topic).topic_id
        return hadoop_path(session.store.url, table_prefix(topic_id).rstrip("/"))


def s3a_options(store: str, **options: str) -> dict[str, str]:
    """Hadoop's options with which Spark opens this store's bucket, and only this bucket, by s3a.

    Pass them to `spark.read.options(...)`, or to the session's settings with `spark.hadoop.` before
    each name. Empty if the store is not at s3://. They hold the given credentials; without any, s3a
    searches AWS's usual chain.

    `options` are those of `committed_files`. Raises InvalidConfiguration.
    """
    url = store_url_of({"store": store, **named(options)})
    if not url.startswith("s3://"):
        return {}
    address = parse_s3_url(url)
    if address.profile is not None:
        raise InvalidConfiguration(
            "profile: s3a knows no profiles of AWS's configuration; give access_key_id and"
            " secret_access_key, or let the environment or the instance's role have credentials"
        )
    found = {
        "endpoint": address.endpoint,
        "endpoint.region": address.region,
        "path.style.access": str(address.path_style).lower(),
        "access.key": address.access_key_id,
        "secret.key": address.secret_access_key,
        "session.token": address.session_token,
        **({} if address.encryption is None else address.encryption.hadoop_options()),
    }
    return {
        f"fs.s3a.bucket.{address.bucket}.{name}": value for name, value in found.items() if value
    }


@contextmanager
def _session(store: str, options: dict[str, str]) -> Iterator[Session]:
    with Session(store_url_of({"store": store, **named(options)})) as session:
        yield session


def named(options: dict[str, str]) -> dict[str, str]:
    """`options` of `committed_files` as the source's."""
    return {f"store.{name}": value for name, value in options.items()}


async def _files(bucket: Bucket, topics: tuple[str, ...]) -> list[CommittedFile]:
    view = await bucket.view(*topics)
    url = bucket.access.store.url
    return [
        CommittedFile(
            topic=name,
            partition=partition.partition.partition,
            path=hadoop_path(url, stored.segment.key(partition.partition.topic_id)),
            size_bytes=stored.segment.size_bytes,
            rows=stored.segment.row_count,
            first_offset=stored.segment.first_row,
            last_offset=stored.segment.last_row,
            log_start=partition.log_start,
        )
        for name in topics
        for partition in view.of_topic(bucket.topic(name).topic_id)
        for stored in partition.segments
        if stored.segment.last_row >= partition.log_start
    ]


def hadoop_path(store_url: str, key: str) -> str:
    """Hadoop's path: S3 is s3a; `s3a_options` has endpoint and credentials.

    Hadoop takes a path as it stands, while the URL of a directory has escapes.
    """
    base = store_url.partition("?")[0].rstrip("/")
    if base.startswith("file://"):
        base = unquote(base)
    if base.startswith("s3://"):
        base = f"s3a://{base.removeprefix('s3://')}"
    return f"{base}/{key}"
