"""DescribeClientQuotas and AlterClientQuotas: quotas of clients, as records of the metadata log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.coordinator.cluster.records.client_quotas import (
    DEFAULT_NAME,
    EntityType,
    QuotaEntity,
)
from tidelog.coordinator.cluster.state.quota_changes import altering
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaEntityPart,
    QuotaFilter,
    QuotaValue,
)

CHANGES_MAX: Final = 10_000
"""Quotas that one request changes, as in Kafka."""
_SLICE_ENTITIES: Final = 256
"""Entities that a slice of the event loop describes."""
_Matches: TypeAlias = Mapping[EntityType, Callable[[str], bool]]


class MatchType(IntEnum):
    """How a filter selects names, by Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _Fault(Refused):
    """The request, or the changes of one entity, get this error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def describe_client_quotas(
    broker: ClusterServices, request: DescribeClientQuotasRequest, _context: RequestContext
) -> DescribeClientQuotasResponse:
    """The quotas of the entities that the filters select."""
    try:
        matches = _matches(request.components)
    except _Fault as fault:
        return DescribeClientQuotasResponse(
            error_code=fault.code, error_message=str(fault), entries=None
        )
    await broker.renewal.renewed()
    described = _described(broker.metadata.state.quotas, matches, request.strict)
    return DescribeClientQuotasResponse(
        error_message=None, entries=await broker.turns.through(described)
    )


def _matches(components: Sequence[QuotaFilter]) -> _Matches:
    """The selected names by type. Raises _Fault."""
    matches: dict[EntityType, Callable[[str], bool]] = {}
    for each in components:
        if not each.entity_type:
            raise _Fault(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if each.entity_type not in set(EntityType):
            raise _Fault(
                ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {each.entity_type}"
            )
        kind = EntityType(each.entity_type)
        if kind in matches:
            raise _Fault(
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind} cannot appear more than once in the filter.",
            )
        matches[kind] = _match(each)
    if EntityType.IP in matches and len(matches) > 1:
        raise _Fault(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component.",
        )
    return matches


def _match(component: QuotaFilter) -> Callable[[str], bool]:
    """Whether a filter selects a name. Raises _Fault."""
    try:
        match_type = MatchType(component.match_type)
    except ValueError:
        raise _Fault(
            ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}"
        ) from None
    if match_type is MatchType.EXACT:
        wanted = component.match
        if wanted is None:
            raise _Fault(
                ErrorCode.INVALID_REQUEST,
                "Request specified MATCH_TYPE_EXACT, but set match string to null.",
            )
        return lambda name: name == wanted != DEFAULT_NAME
    if component.match is not None:
        raise _Fault(
            ErrorCode.INVALID_REQUEST,
            f"Request specified MATCH_TYPE_{match_type.name}, but also specified a match string.",
        )
    if match_type is MatchType.DEFAULT:
        return lambda name: name == DEFAULT_NAME
    return lambda _name: True


def _described(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], matches: _Matches, strict: bool
) -> Generator[None, None, list[DescribedQuotas]]:
    found: list[DescribedQuotas] = []
    for number, (entity, values) in enumerate(quotas.items(), 1):
        if number % _SLICE_ENTITIES == 0:
            yield
        named = dict(entity.named())
        if strict and len(named) != len(matches):
            continue
        if not all(kind in named and match(named[kind]) for kind, match in matches.items()):
            continue
        found.append(
            DescribedQuotas(
                entity=_parts(entity),
                values=[QuotaValue(key=key, value=value) for key, value in values.items()],
            )
        )
    return found


async def alter_client_quotas(
    broker: ClusterServices, request: AlterClientQuotasRequest, _context: RequestContext
) -> AlterClientQuotasResponse:
    """Make the valid changes, all of them in one entry of the log.

    The answer has one result for each entity. With `validate_only` nothing changes.
    """
    wanted: dict[QuotaEntity, dict[str, float | None]] = {}
    faults: dict[QuotaEntity | tuple[tuple[str, str | None], ...], _Fault | None] = {}
    for entry in request.entries:
        key: QuotaEntity | tuple[tuple[str, str | None], ...]
        key = tuple((part.entity_type, part.entity_name) for part in entry.entity)
        try:
            key = entity = _entity(entry.entity)
            if entity in faults:
                raise _Fault(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {entity}")
            faults[entity] = None
            wanted[entity] = _values(entity, entry)
        except _Fault as fault:
            faults[key] = fault
    valid = {entity: values for entity, values in wanted.items() if faults[entity] is None}
    failed: _Fault | None = None
    if sum(map(len, valid.values())) > CHANGES_MAX:
        failed = _Fault(
            ErrorCode.POLICY_VIOLATION,
            f"the request changes more than {CHANGES_MAX} quotas; send several requests",
        )
    elif valid and not request.validate_only:
        try:
            await change_metadata(broker, lambda state: altering(state, valid))
        except ChangeFailed as error:
            failed = _Fault(error.code, str(error))
    return AlterClientQuotasResponse(
        entries=[
            _result(entity, fault or (failed if entity in valid else None))
            for entity, fault in faults.items()
        ]
    )


def _entity(parts: Sequence[QuotaEntityPart]) -> QuotaEntity:
    """The entity of a request. Raises _Fault. As in Kafka, the last part of a type counts."""
    names: dict[EntityType, str] = {}
    for part in parts:
        if part.entity_type not in set(EntityType):
            raise _Fault(
                ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {part.entity_type}"
            )
        kind = EntityType(part.entity_type)
        if part.entity_name == "":
            raise _Fault(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
        names[kind] = DEFAULT_NAME if part.entity_name is None else part.entity_name
    entity = QuotaEntity(*map(names.get, EntityType))
    if fault := entity.fault():
        raise _Fault(ErrorCode.INVALID_REQUEST, fault)
    return entity


def _values(entity: QuotaEntity, entry: QuotaAlteration) -> dict[str, float | None]:
    """The quotas to set, and to remove (None). Raises _Fault."""
    values: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key in values:
            raise _Fault(
                ErrorCode.INVALID_REQUEST,
                f"Duplicate quota key {operation.key} not updating quota for this entity {entity}",
            )
        if operation.remove:
            values[operation.key] = None
            continue
        if fault := entity.value_fault(operation.key, operation.value):
            raise _Fault(ErrorCode.INVALID_REQUEST, fault)
        values[operation.key] = operation.value
    return values


def _result(
    entity: QuotaEntity | tuple[tuple[str, str | None], ...], fault: _Fault | None
) -> QuotaAlterationResult:
    parts = (
        _parts(entity)
        if isinstance(entity, QuotaEntity)
        else [QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity]
    )
    if fault is None:
        return QuotaAlterationResult(error_message=None, entity=parts)
    return QuotaAlterationResult(error_code=fault.code, error_message=str(fault), entity=parts)


def _parts(entity: QuotaEntity) -> list[QuotaEntityPart]:
    return [
        QuotaEntityPart(entity_type=kind, entity_name=None if name == DEFAULT_NAME else name)
        for kind, name in entity.named()
    ]
