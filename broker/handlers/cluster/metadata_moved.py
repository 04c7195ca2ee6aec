"""MetadataMoved (20003): another broker hints that the metadata log has a new entry."""

from __future__ import annotations

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.protocol.schemas.own.metadata_moved import MetadataMovedRequest, MetadataMovedResponse


async def metadata_moved(
    broker: ClusterServices, request: MetadataMovedRequest, context: RequestContext
) -> MetadataMovedResponse:
    """Read the log unless this broker has the entry."""
    if request.sequence > broker.metadata.state.sequence:
        await broker.renewal.renewed(even_if_alone=True)
    return MetadataMovedResponse()
