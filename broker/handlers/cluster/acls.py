"""DescribeAcls, CreateAcls and DeleteAcls: access control rules, as records of the metadata log."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, TypeAlias, TypeVar

from tidelog.broker.handlers.metadata_change import ChangeFailed, change_metadata
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.coordinator.cluster.records.acl_rules import AclFilter, AclRule
from tidelog.coordinator.cluster.records.records import AclsChanged
from tidelog.coordinator.cluster.state.acl_changes import (
    AclsRefused,
    TooManyChanges,
    creating,
    deleting,
)
from tidelog.coordinator.cluster.state.acl_table import AclTable
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tidelog.security.acl_codes import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

_NO_AUTHORIZER: Final = (
    "No Authorizer is configured on the broker: set authorizer.class.name on all brokers"
)
_UNKNOWN_FILTER: Final = "The filter contains UNKNOWN elements"
_SLICE_RULES: Final = 256
"""Rules that a slice of the event loop describes."""
C = TypeVar("C", bound=IntEnum)
_Change: TypeAlias = Callable[[ClusterState], Sequence[AclsChanged]]
"""The records of a change, given the state that they will follow. May raise AclsRefused."""


class _Fault(Exception):
    """A part of the request gets this error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def describe_acls(
    broker: ClusterServices, request: DescribeAclsRequest, _context: RequestContext
) -> DescribeAclsResponse:
    """The rules that the filter selects, by resource."""
    if broker.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER
        )
    await broker.renewal.renewed()
    try:
        chosen = _filter(request)
    except _Fault as fault:
        return DescribeAclsResponse(error_code=fault.code, error_message=str(fault))
    described = _described(broker.metadata.state.acls, chosen)
    return DescribeAclsResponse(error_message=None, resources=await broker.turns.through(described))


async def create_acls(
    broker: ClusterServices, request: CreateAclsRequest, _context: RequestContext
) -> CreateAclsResponse:
    """Create the valid rules, all of them in one entry of the log. An existing rule is no error."""
    results: list[AclCreationResult] = []
    rules: list[AclRule] = []
    for creation in request.creations:
        result = AclCreationResult(error_message=None)
        results.append(result)
        with _faults_in(result):
            _require_authorizer(broker)
            rules.append(_rule(creation))
    with _faults_in(*(result for result in results if not result.error_code)):
        if rules:
            await _change(broker, lambda state: creating(state, rules))
    return CreateAclsResponse(results=results)


async def delete_acls(
    broker: ClusterServices, request: DeleteAclsRequest, _context: RequestContext
) -> DeleteAclsResponse:
    """Delete the rules that the valid filters select, all of them in one entry of the log."""
    results: list[DeleteAclsFilterResult] = []
    filters: list[AclFilter] = []
    for each in request.filters:
        result = DeleteAclsFilterResult(error_message=None)
        results.append(result)
        with _faults_in(result):
            _require_authorizer(broker)
            filters.append(_filter(each))
    valid = [result for result in results if not result.error_code]
    selected: list[list[AclRule]] = []

    def build(state: ClusterState) -> Sequence[AclsChanged]:
        nonlocal selected
        selected, changes = deleting(state, filters)
        return changes

    with _faults_in(*valid):
        if filters:
            await _change(broker, build)
        for result, rules in zip(valid, selected, strict=True):
            result.matching_acls = [_deleted(rule) for rule in rules]
    return DeleteAclsResponse(filter_results=results)


@contextmanager
def _faults_in(*results: AclCreationResult | DeleteAclsFilterResult) -> Iterator[None]:
    """Answer a _Fault in the results."""
    try:
        yield
    except _Fault as fault:
        for result in results:
            result.error_code, result.error_message = fault.code, str(fault)


def _require_authorizer(broker: ClusterServices) -> None:
    if broker.authorizer is None:
        raise _Fault(ErrorCode.SECURITY_DISABLED, _NO_AUTHORIZER)


async def _change(broker: ClusterServices, build: _Change) -> None:
    """Append what `build` returns. Raises _Fault, and changes nothing then."""
    refused: AclsRefused | None = None

    def built(state: ClusterState) -> Sequence[AclsChanged]:
        nonlocal refused
        refused = None
        try:
            return build(state)
        except AclsRefused as error:
            refused = error
            return ()

    await broker.renewal.renewed()
    try:
        await change_metadata(broker, built)
    except ChangeFailed as error:
        raise _Fault(error.code, str(error)) from error
    if refused is not None:
        too_many = isinstance(refused, TooManyChanges)
        code = ErrorCode.POLICY_VIOLATION if too_many else ErrorCode.INVALID_REQUEST
        raise _Fault(code, str(refused))


def _rule(creation: AclCreation) -> AclRule:
    """Raises _Fault if it cannot be a rule."""
    rule = AclRule(
        _code(ResourceType, creation.resource_type),
        _code(PatternType, creation.resource_pattern_type),
        creation.resource_name,
        creation.principal,
        creation.host,
        _code(AclOperation, creation.operation),
        _code(PermissionType, creation.permission_type),
    )
    fault = rule.fault()
    if rule.resource_type is ResourceType.CLUSTER and rule.name != CLUSTER_NAME:
        fault = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if fault is not None:
        raise _Fault(ErrorCode.INVALID_REQUEST, fault)
    return rule


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    chosen = AclFilter(
        _code(ResourceType, asked.resource_type_filter),
        _code(PatternType, asked.pattern_type_filter),
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        _code(AclOperation, asked.operation),
        _code(PermissionType, asked.permission_type),
    )
    codes = (chosen.resource_type, chosen.pattern, chosen.operation, chosen.permission)
    if 0 in codes:
        raise _Fault(ErrorCode.INVALID_REQUEST, _UNKNOWN_FILTER)
    return chosen


def _code(kind: type[C], number: int) -> C:
    """The code, or UNKNOWN."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def _described(
    acls: AclTable, chosen: AclFilter
) -> Generator[None, None, list[DescribeAclsResource]]:
    by_resource: dict[object, DescribeAclsResource] = {}
    for number, rule in enumerate(acls.selected(chosen), 1):
        found = by_resource.get(rule.resource)
        if found is None:
            found = by_resource[rule.resource] = DescribeAclsResource(
                resource_type=rule.resource_type,
                resource_name=rule.name,
                pattern_type=rule.pattern,
                acls=[],
            )
        found.acls.append(
            AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
        )
        if number % _SLICE_RULES == 0:
            yield
    return list(by_resource.values())


def _deleted(rule: AclRule) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=rule.resource_type,
        resource_name=rule.name,
        pattern_type=rule.pattern,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )
