"""ApiVersions: what is served here. Needs no broker, so that the dispatcher answers it itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)

SOFTWARE_NAMED_FROM = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def answer_api_versions(
    advertised: Sequence[ApiVersion], request: ApiVersionsRequest, version: int
) -> ApiVersionsResponse:
    """All that is served. No feature is finalized: clients keep to the first version of
    transactions. INVALID_REQUEST for a client that names its software oddly (KIP-511)."""
    if version >= SOFTWARE_NAMED_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=list(advertised))


def refuse_api_versions(advertised: Sequence[ApiVersion]) -> ApiVersionsResponse:
    """The answer, of version 0, to a version that is not served: the versions that are."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[each for each in advertised if each.api_key == ApiKey.API_VERSIONS],
    )
