"""Maps error codes to those that clients of older versions understand."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode

NEVER: Final = 2**15
"""No version."""


class Since(NamedTuple):
    """The first version that understands a code, and the code for earlier versions."""

    version: int
    before: ErrorCode


_FENCED_SINCE_2 = Since(2, ErrorCode.INVALID_PRODUCER_EPOCH)
# A producer retries after NOT_ENOUGH_REPLICAS; it does not know the coordinator's codes.
_TRY_AGAIN = Since(NEVER, ErrorCode.NOT_ENOUGH_REPLICAS)

OLDER_CODES: Final[Mapping[tuple[ApiKey, ErrorCode], Since]] = MappingProxyType(
    {
        (ApiKey.INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED): Since(
            4, ErrorCode.INVALID_PRODUCER_EPOCH
        ),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.PRODUCER_FENCED): _FENCED_SINCE_2,
        (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.PRODUCER_FENCED): _FENCED_SINCE_2,
        (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED): _FENCED_SINCE_2,
        (ApiKey.PRODUCE, ErrorCode.PRODUCER_FENCED): Since(NEVER, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ApiKey.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE): Since(11, ErrorCode.INVALID_TXN_STATE),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTION_ABORTABLE): Since(
            4, ErrorCode.INVALID_TXN_STATE
        ),
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.PRODUCER_FENCED): Since(
            NEVER, ErrorCode.INVALID_PRODUCER_EPOCH
        ),
        # On any other code clients search for another coordinator, or give up.
        (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS): Since(
            NEVER, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ),
        (ApiKey.PRODUCE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): _TRY_AGAIN,
        (ApiKey.PRODUCE, ErrorCode.COORDINATOR_NOT_AVAILABLE): _TRY_AGAIN,
        (ApiKey.PRODUCE, ErrorCode.NOT_COORDINATOR): _TRY_AGAIN,
        (ApiKey.PRODUCE, ErrorCode.CONCURRENT_TRANSACTIONS): _TRY_AGAIN,
        (ApiKey.PRODUCE, ErrorCode.NETWORK_EXCEPTION): _TRY_AGAIN,
        (ApiKey.PRODUCE, ErrorCode.OPERATION_NOT_ATTEMPTED): _TRY_AGAIN,
    }
)


def error_for(api: ApiKey, version: int, error: ErrorCode) -> ErrorCode:
    """The error code in the answer to a request of this version."""
    since = OLDER_CODES.get((api, error))
    return error if since is None or version >= since.version else since.before
