"""MetadataMoved (20003), Tidelog's own: the metadata log has a new entry."""

from __future__ import annotations

from tidelog.protocol.fields import int16, int64
from tidelog.protocol.message import Request, Response


class MetadataMovedRequest(
    Request["MetadataMovedResponse"], api_key=20_003, versions=(0, 0), flexible=0
):
    """A hint to another broker to read the metadata log now. Nothing depends on it."""

    sequence: int = int64()
    """The number of the entry that the sender has appended."""


class MetadataMovedResponse(Response, api_key=20_003, versions=(0, 0), flexible=0):
    """The receiver has tried to read the log."""

    error_code: int = int16()
