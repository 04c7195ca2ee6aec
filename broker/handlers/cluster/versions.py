"""ApiVersions: the served APIs. It needs no broker: the dispatcher answers it itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidelog.coordinator.transaction.transaction import OWN_EPOCHS_FROM
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

SOFTWARE_NAMED_FROM = 3
TRANSACTION_FEATURE = "transaction.version"
FEATURES_EPOCH = 0
"""Features are the same in all brokers and never change while one runs."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def answer_api_versions(
    advertised: Sequence[ApiVersion], request: ApiVersionsRequest, version: int
) -> ApiVersionsResponse:
    """All served APIs, and the second version of transactions (KIP-890).

    INVALID_REQUEST for a client with a malformed software name or version (KIP-511).
    """
    if version >= SOFTWARE_NAMED_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=list(advertised),
        supported_features=[
            SupportedFeatureKey(
                name=TRANSACTION_FEATURE, min_version=0, max_version=OWN_EPOCHS_FROM
            )
        ],
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(
                name=TRANSACTION_FEATURE,
                max_version_level=OWN_EPOCHS_FROM,
                min_version_level=OWN_EPOCHS_FROM,
            )
        ],
    )


def refuse_api_versions(advertised: Sequence[ApiVersion]) -> ApiVersionsResponse:
    """The answer, in version 0, to an unserved version: the served versions."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[each for each in advertised if each.api_key == ApiKey.API_VERSIONS],
    )
