"""Cluster ids: UUIDs in the text form that Kafka uses."""

from __future__ import annotations

import base64
import binascii
from uuid import UUID

CLUSTER_ID_LENGTH = 22


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
