"""DrainBrokers (20004) and RebalanceBrokers (20005): where operators want partitions to be."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.coordinator.cluster.membership.draining import DrainRefused, NotLive, drain_changes
from tidelog.coordinator.cluster.records.records import DrainChanged
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.drains import (
    BrokerDrain,
    BrokerDrainResult,
    DrainBrokersRequest,
    DrainBrokersResponse,
)
from tidelog.protocol.schemas.own.rebalance import (
    BrokerRebalance,
    RebalanceBrokersRequest,
    RebalanceBrokersResponse,
)


async def drain_brokers(
    broker: ClusterServices, request: DrainBrokersRequest, _context: RequestContext
) -> DrainBrokersResponse:
    """Begin or end drains, one after the other. A repeated request changes nothing."""
    await broker.renewal.renewed()
    results = [await _drained(broker, each) for each in request.brokers]
    live = broker.metadata.state.live_brokers()
    return DrainBrokersResponse(
        error_message=None,
        brokers=results,
        draining=[info.broker_id for info in live if info.draining],
    )


async def _drained(broker: ClusterServices, asked: BrokerDrain) -> BrokerDrainResult:
    refused: DrainRefused | None = None

    def build(state: ClusterState) -> Sequence[DrainChanged]:
        nonlocal refused
        refused = None
        try:
            return drain_changes(state, BrokerId(asked.broker_id), draining=asked.draining)
        except DrainRefused as error:
            refused = error
            return ()

    result = BrokerDrainResult(broker_id=asked.broker_id, error_message=None)
    try:
        await change_metadata(broker, build)
    except ChangeFailed as error:
        result.error_code, result.error_message = error.code, str(error)
        return result
    if refused is not None:
        unknown = isinstance(refused, NotLive)
        result.error_code = (
            ErrorCode.BROKER_ID_NOT_REGISTERED if unknown else ErrorCode.INVALID_REQUEST
        )
        result.error_message = str(refused)
    return result


async def rebalance_brokers(
    broker: ClusterServices, request: RebalanceBrokersRequest, _context: RequestContext
) -> RebalanceBrokersResponse:
    """Every broker gives away the partitions above its fair share, before the answer."""
    await broker.renewal.renewed(even_if_alone=request.is_forwarded)
    found = await broker.rebalances.rebalance(passes_on=not request.is_forwarded)
    return RebalanceBrokersResponse(
        error_message=None,
        brokers=[
            BrokerRebalance(
                broker_id=broker_id,
                error_code=each.code,
                error_message=each.message,
                given=each.given,
            )
            for broker_id, each in found.items()
        ],
    )
