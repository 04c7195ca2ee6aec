"""ApiVersions (18): a broker's API versions and features."""

from __future__ import annotations

from tidelog.protocol.fields import array, boolean, int16, int32, int64, string
from tidelog.protocol.message import Request, Response, Struct


class ApiVersionsRequest(Request["ApiVersionsResponse"], api_key=18, versions=(0, 4), flexible=3):
    """Request the broker's versions. The client names its software from version 3 (KIP-511)."""

    client_software_name: str = string("3+")
    client_software_version: str = string("3+")


class ApiVersion(Struct):
    """The versions of one API."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    """The levels of a feature that the broker can run (KIP-584)."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Struct):
    """The levels of a feature that the cluster has enabled (KIP-584)."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(Response, api_key=18, versions=(0, 4), flexible=3):
    """The APIs and features of a broker.

    Its header always has version 0. The answer to an unknown version is version 0 with error 35.
    """

    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32("1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = boolean("3+", tag=3)
