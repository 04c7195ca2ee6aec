"""ClusterFeatures (20006): the versions of live brokers, and the level of the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.coordinator.cluster.records.records import LevelRaised
from tidelog.coordinator.cluster.state.features import FeatureRefused, level_of, raised
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.features import (
    NO_LEVEL,
    BrokerVersion,
    ClusterFeaturesRequest,
    ClusterFeaturesResponse,
)


async def cluster_features(
    broker: ClusterServices, request: ClusterFeaturesRequest, _context: RequestContext
) -> ClusterFeaturesResponse:
    """Describe, and raise the level before that if asked for. A repeated request changes nothing.

    A level that the cluster has already is no error.
    """
    await broker.renewal.renewed(even_if_alone=True)
    refused: FeatureRefused | None = None

    def build(state: ClusterState) -> Sequence[LevelRaised]:
        nonlocal refused
        refused = None
        try:
            return raised(state, request.raise_to)
        except FeatureRefused as error:
            refused = error
            return ()

    if request.raise_to != NO_LEVEL:
        try:
            await change_metadata(broker, build)
        except ChangeFailed as error:
            return _described(broker, error.code, str(error))
    if refused is not None:
        return _described(broker, ErrorCode.FEATURE_UPDATE_FAILED, str(refused))
    return _described(broker)


def _described(
    broker: ClusterServices, code: ErrorCode = ErrorCode.NONE, why: str | None = None
) -> ClusterFeaturesResponse:
    state = broker.metadata.state
    live = state.live_brokers()
    level = level_of(state)
    return ClusterFeaturesResponse(
        error_code=code,
        error_message=why,
        level=level,
        highest=max(level, min((info.version for info in live), default=level)),
        brokers=[BrokerVersion(broker_id=info.broker_id, version=info.version) for info in live],
    )
