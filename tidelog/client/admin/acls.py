"""An administrator's requests about access control rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tidelog.client.errors import check
from tidelog.client.pool import Client
from tidelog.protocol.schemas.security.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tidelog.security.acl_codes import AclOperation, PatternType, PermissionType, ResourceType

FormT = TypeVar("FormT")


class Acl(NamedTuple):
    """One rule."""

    resource_type: ResourceType
    pattern: PatternType
    name: str
    principal: str
    host: str
    operation: AclOperation
    permission: PermissionType


class AclSelection(NamedTuple):
    """Selects rules. None, or ANY, selects all."""

    resource_type: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY


async def create_acls(client: Client, acls: Sequence[Acl]) -> None:
    """Create rules; existing ones stay.

    Raises:
        RequestRefused: the first refusal; the other rules may have been created.
        RequestFailed: no answer; the request may be repeated.
    """
    creations = [
        AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.name,
            resource_pattern_type=acl.pattern,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    response = await client.request_any(CreateAclsRequest(creations=creations))
    for result in response.results:
        check("access control rule", result.error_code, result.error_message)


async def describe_acls(client: Client, chosen: AclSelection) -> list[Acl]:
    """The selected rules. Raises RequestRefused, RequestFailed."""
    response = await client.request_any(_selecting(DescribeAclsRequest, chosen))
    check("access control rules", response.error_code, response.error_message)
    return [
        Acl(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            PermissionType(acl.permission_type),
        )
        for resource in response.resources
        for acl in resource.acls
    ]


async def delete_acls(client: Client, chosen: AclSelection) -> list[Acl]:
    """Delete the selected rules; return them. Raises RequestRefused, RequestFailed."""
    selection = _selecting(DeleteAclsFilter, chosen)
    (result,) = (await client.request_any(DeleteAclsRequest(filters=[selection]))).filter_results
    check("access control rules", result.error_code, result.error_message)
    return [
        Acl(
            ResourceType(each.resource_type),
            PatternType(each.pattern_type),
            each.resource_name,
            each.principal,
            each.host,
            AclOperation(each.operation),
            PermissionType(each.permission_type),
        )
        for each in result.matching_acls
    ]


def _selecting(form: Callable[..., FormT], chosen: AclSelection) -> FormT:
    return form(
        resource_type_filter=chosen.resource_type,
        resource_name_filter=chosen.name,
        pattern_type_filter=chosen.pattern,
        principal_filter=chosen.principal,
        host_filter=chosen.host,
        operation=chosen.operation,
        permission_type=chosen.permission,
    )
