"""ClusterFeatures (20006), Tidelog's own: the versions of brokers, and the cluster's level."""

from __future__ import annotations

from tidelog.protocol.fields import array, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct

NO_LEVEL = -1


class ClusterFeaturesRequest(
    Request["ClusterFeaturesResponse"], api_key=20_006, versions=(0, 0), flexible=0
):
    """Describe the versions, after raising the level if `raise_to` names one."""

    raise_to: int = int32(default=NO_LEVEL)


class BrokerVersion(Struct):
    """The version of one live broker's release."""

    broker_id: int = int32()
    version: int = int32()


class ClusterFeaturesResponse(Response, api_key=20_006, versions=(0, 0), flexible=0):
    """`highest`: the level to which the cluster can be raised now."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    level: int = int32()
    highest: int = int32()
    brokers: list[BrokerVersion] = array(BrokerVersion)
