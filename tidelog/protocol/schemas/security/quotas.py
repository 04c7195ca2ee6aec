"""DescribeClientQuotas (48), AlterClientQuotas (49): quotas of users, client ids and addresses."""

from __future__ import annotations

from tidelog.protocol.fields import array, boolean, float64, int8, int16, int32, string
from tidelog.protocol.message import Request, Response, Struct


class QuotaFilter(Struct):
    """Selects entities by one of their parts."""

    entity_type: str = string()
    match_type: int = int8()
    """0: exactly this name, 1: the default, 2: any name, the default included."""
    match: str | None = string(nullable="0+")


class DescribeClientQuotasRequest(
    Request["DescribeClientQuotasResponse"], api_key=48, versions=(0, 1), flexible=1
):
    """List the quotas of the entities that all filters select."""

    components: list[QuotaFilter] = array(QuotaFilter)
    strict: bool = boolean()
    """Whether entities with other parts are left out."""


class QuotaEntityPart(Struct):
    """A part of an entity; the default has no name."""

    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class QuotaValue(Struct):
    key: str = string()
    value: float = float64()


class DescribedQuotas(Struct):
    """The quotas of one entity."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart)
    values: list[QuotaValue] = array(QuotaValue)


class DescribeClientQuotasResponse(Response, api_key=48, versions=(0, 1), flexible=1):
    """The quotas by entity."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entries: list[DescribedQuotas] | None = array(DescribedQuotas, nullable="0+")


class QuotaOperation(Struct):
    """Sets a quota, or removes it."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class QuotaAlteration(Struct):
    """The changes of one entity's quotas."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart)
    ops: list[QuotaOperation] = array(QuotaOperation)


class AlterClientQuotasRequest(
    Request["AlterClientQuotasResponse"], api_key=49, versions=(0, 1), flexible=1
):
    """Change quotas."""

    entries: list[QuotaAlteration] = array(QuotaAlteration)
    validate_only: bool = boolean()


class QuotaAlterationResult(Struct):
    """The outcome for one entity."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: list[QuotaEntityPart] = array(QuotaEntityPart)


class AlterClientQuotasResponse(Response, api_key=49, versions=(0, 1), flexible=1):
    """The outcomes by entity."""

    throttle_time_ms: int = int32()
    entries: list[QuotaAlterationResult] = array(QuotaAlterationResult)
