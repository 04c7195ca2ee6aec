"""RebalanceBrokers between brokers: only its owner can give a partition away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.broker.peers.enlistments import code_of
from tidelog.identifiers import BrokerId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.schemas.own.rebalance import (
    RebalanceBrokersRequest,
    RebalanceBrokersResponse,
)


class Rebalanced(NamedTuple):
    """How many partitions a broker gave away. With an error it may have given more."""

    given: int
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


class RebalanceForm:
    """All operators that wait for one broker share a request.

    A repeated or lost request does no harm: the broker plans with its partitions at that time. An
    error of the whole request is the answer of each operator.
    """

    purpose: Final = "rebalances"

    def size(self, item: BrokerId) -> int:
        return 1

    def request(self, items: Sequence[BrokerId]) -> RebalanceBrokersRequest:
        return RebalanceBrokersRequest(is_forwarded=True)

    def replies(
        self, items: Sequence[BrokerId], response: RebalanceBrokersResponse
    ) -> list[Rebalanced]:
        if response.error_code != ErrorCode.NONE:
            refused = Rebalanced(0, code_of(response.error_code), response.error_message)
            return [refused] * len(items)
        found = {
            each.broker_id: Rebalanced(each.given, code_of(each.error_code), each.error_message)
            for each in response.brokers
        }
        missing = [item for item in items if item not in found]
        if missing:
            raise MalformedMessage(f"broker {missing[0]} does not tell what it gave away")
        return [found[item] for item in items]
