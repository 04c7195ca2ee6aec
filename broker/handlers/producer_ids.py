"""InitProducerId (22): producer identities, for idempotence alone."""

from __future__ import annotations

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.services import DataServices
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import InitProducerIdRequest, InitProducerIdResponse


async def init_producer_id(
    broker: DataServices, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """A fresh producer id at epoch 0, whatever identity the producer had before (KIP-360)."""
    if request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    producer_id = await broker.producer_ids.next()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
