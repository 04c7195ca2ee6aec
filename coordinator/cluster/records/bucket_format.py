"""A cluster's id and its bucket's format version, with the versions that this Tidelog may use.

Cluster ids are UUIDs in the text form that Kafka uses.
"""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

from tidelog.coordinator.cluster.records.records import ClusterCreated
from tidelog.errors import UnsupportedFormat

CLUSTER_ID_LENGTH = 22
FORMAT_VERSION = 2
"""The format of buckets that this Tidelog creates. The first release has 1."""
READER_VERSION = 2
"""A Tidelog may read a bucket whose minimum reader version is at most this."""
WRITER_VERSION = 2
"""A Tidelog may write a bucket whose minimum writer version is at most this."""


def encode_cluster_id(identity: UUID) -> str:
    """URL-safe base64 without padding (org.apache.kafka.common.Uuid)."""
    return base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=")


def is_cluster_id(text: str) -> bool:
    """Whether the text is a UUID in this form."""
    if len(text) != CLUSTER_ID_LENGTH:
        return False
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return False
    return encode_cluster_id(UUID(bytes=raw)) == text


def new_cluster(identity: UUID) -> ClusterCreated:
    """Entry 0 of a bucket that this Tidelog creates."""
    return ClusterCreated(
        cluster_id=encode_cluster_id(identity),
        format_version=FORMAT_VERSION,
        minimum_reader_version=READER_VERSION,
        minimum_writer_version=WRITER_VERSION,
    )


def check_supported(cluster: ClusterCreated, url: str, *, writing: bool) -> None:
    """Raise UnsupportedFormat, with both versions, if the bucket demands a newer Tidelog."""
    if cluster.minimum_reader_version > READER_VERSION:
        raise UnsupportedFormat(
            f"{url} has format version {cluster.format_version}, which asks for a reader of version"
            f" {cluster.minimum_reader_version}; this Tidelog has reader version {READER_VERSION}."
            " Nothing was changed: use a newer Tidelog"
        )
    if writing and cluster.minimum_writer_version > WRITER_VERSION:
        raise UnsupportedFormat(
            f"{url} has format version {cluster.format_version}, which asks for a writer of version"
            f" {cluster.minimum_writer_version}; this Tidelog has writer version {WRITER_VERSION}"
            " and may only read it. Nothing was changed: use a newer Tidelog"
        )
