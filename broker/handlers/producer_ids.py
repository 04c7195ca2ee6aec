"""InitProducerId (22): producer identities, for idempotence alone."""

from __future__ import annotations

import logging

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.services import DataServices
from tidelog.errors import TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger(__name__)


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
    try:
        producer_id = await broker.producer_ids.next()
    except TidelogError as error:
        # As Kafka where it has no ids to give: producers ask again. Other errors are final to them.
        logger.warning("there is no producer id to give", extra={"why": str(error)})
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
