"""The errors that clients of older versions get."""

from __future__ import annotations

import pytest

from tidelog.coordinator.transaction.wire_errors import error_for
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode

FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
ABORTABLE, OLD_ABORTABLE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("api", "version", "error", "told"),
    [
        (ApiKey.INIT_PRODUCER_ID, 3, FENCED, OLD_FENCED),
        (ApiKey.INIT_PRODUCER_ID, 4, FENCED, FENCED),
        *(
            (api, version, FENCED, told)
            for api in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN)
            for version, told in ((1, OLD_FENCED), (2, FENCED))
        ),
        (ApiKey.PRODUCE, 13, FENCED, OLD_FENCED),
        (ApiKey.PRODUCE, 10, ABORTABLE, OLD_ABORTABLE),
        (ApiKey.PRODUCE, 11, ABORTABLE, ABORTABLE),
        (ApiKey.TXN_OFFSET_COMMIT, 3, ABORTABLE, OLD_ABORTABLE),
        (ApiKey.TXN_OFFSET_COMMIT, 4, ABORTABLE, ABORTABLE),
        *(
            (ApiKey.PRODUCE, 13, error, ErrorCode.NOT_ENOUGH_REPLICAS)
            for error in (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.NETWORK_EXCEPTION,
            )
        ),
        (ApiKey.END_TXN, 0, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ApiKey.PRODUCE, 3, ErrorCode.NONE, ErrorCode.NONE),
    ],
)
def test_an_error_code_goes_only_to_versions_that_know_the_code(
    api: ApiKey, version: int, error: ErrorCode, told: ErrorCode
) -> None:
    assert error_for(api, version, error) is told
