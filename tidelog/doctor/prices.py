"""The prices of S3's requests. Pure.

The prices are those of S3 Standard in us-east-1. Deletes are free. A listing is counted as one
request, however many pages it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidelog.storage.stores.metered import Operation

MONTH_SECONDS: Final = 30 * 24 * 3600
PUT_DOLLARS: Final = 0.005 / 1000
GET_DOLLARS: Final = 0.0004 / 1000
REQUEST_DOLLARS: Final[Mapping[Operation, float]] = MappingProxyType(
    {
        "put": PUT_DOLLARS,
        "list": PUT_DOLLARS,
        "get": GET_DOLLARS,
        "head": GET_DOLLARS,
        "delete": 0.0,
    }
)


def dollars_a_month(requests_a_second: float, operation: Operation = "put") -> float:
    """The price of so many requests in 30 days."""
    return requests_a_second * MONTH_SECONDS * REQUEST_DOLLARS[operation]
