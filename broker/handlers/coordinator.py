"""FindCoordinator: there are no coordinators yet, and clients are told so."""

from __future__ import annotations

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.error_responses import error_response
from tidelog.broker.services import Services
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest

GROUP, TRANSACTION = 0, 1


async def find_coordinator(
    _broker: Services, request: FindCoordinatorRequest, context: RequestContext
) -> Response | None:
    """COORDINATOR_NOT_AVAILABLE, which clients take for a reason to ask again later."""
    if request.key_type not in (GROUP, TRANSACTION):
        code, message = ErrorCode.INVALID_REQUEST, f"key type {request.key_type} is not served"
    else:
        kind = "consumer groups" if request.key_type == GROUP else "transactions"
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        message = f"this version of Tidelog does not coordinate {kind}"
    return error_response(request, context.api_version, code, message)
