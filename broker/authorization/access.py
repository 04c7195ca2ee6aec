"""The permissions of one request's principal, with an audit line for each refusal and change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.authorization.decisions import AccessDecision
from tidelog.protocol.error_codes import ErrorCode
from tidelog.security.acl_codes import CLUSTER_NAME, OPERATIONS, AclOperation, ResourceType
from tidelog.security.principal import Principal

REFUSALS: Final[Mapping[ResourceType, ErrorCode]] = MappingProxyType(
    {
        ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The error of a request that lacks the permission, by the type of its resource."""
CHANGES: Final = frozenset(
    {
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.ALTER_CONFIGS,
    }
)
"""The operations of administrators: the audit log also has those that are allowed."""


class Want(NamedTuple):
    """One operation on one resource. Without a name: on any resource of the type."""

    operation: AclOperation
    resource_type: ResourceType
    name: str | None
    is_quiet: bool = False
    """Whether a refusal is no news: the client did not name the resource, or has another way."""


class Need(NamedTuple):
    """A request's need: one of these permissions, asked for in this order.

    Without any the request is refused.
    """

    wants: tuple[Want, ...]
    refusal: ErrorCode

    @classmethod
    def of(cls, *wants: Want) -> Need:
        """A need whose lack is an error of the last resource's type."""
        return cls(wants, REFUSALS[wants[-1].resource_type])


@lru_cache(maxsize=4096)
def needed(operation: AclOperation, resource_type: ResourceType, name: str) -> Need:
    """The need of one operation on one resource. Names are kept: give it short ones alone."""
    return Need.of(Want(operation, resource_type, name))


def cluster(operation: AclOperation, *, is_quiet: bool = False) -> Want:
    """An operation on the cluster."""
    return Want(operation, ResourceType.CLUSTER, CLUSTER_NAME, is_quiet)


class Notes(Protocol):
    """Takes notes of decisions."""

    def note(
        self,
        principal: Principal,
        host: str,
        client_id: str | None,
        api: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str | None,
        decision: AccessDecision,
    ) -> None:
        """Note an asked operation, its principal, and the decision."""
        ...


class Access:
    """Answers for one request."""

    __slots__ = ("_api", "_authorizer", "_client_id", "_host", "_notes", "_principal")

    def __init__(
        self,
        authorizer: Authorizer,
        notes: Notes,
        principal: Principal,
        host: str,
        api: str,
        client_id: str | None,
    ) -> None:
        self._authorizer = authorizer
        self._notes = notes
        self._principal = principal
        self._host = host
        self._api = api
        self._client_id = client_id

    def lacks(self, needs: Iterable[Need]) -> ErrorCode:
        """The error for the first need that is not met; NONE if all are."""
        decide, principal, host = self._authorizer.decision, self._principal, self._host
        for wants, refusal in needs:
            for want in wants:
                operation, resource_type, name, is_quiet = want
                decision = decide(principal, host, operation, resource_type, name)
                if decision.is_allowed:
                    if wants[-1].operation in CHANGES:
                        self._note(want, decision)
                    break
                if not is_quiet:
                    self._note(want, decision)
            else:
                return refusal
        return ErrorCode.NONE

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        is_quiet: bool = False,
    ) -> bool:
        """Whether the principal may do it."""
        decision = self._authorizer.decision(
            self._principal, self._host, operation, resource_type, name
        )
        if not (decision.is_allowed or is_quiet):
            self._note(Want(operation, resource_type, name), decision)
        return decision.is_allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The allowed operations on a resource, as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS[resource_type]
            if self.may(operation, resource_type, name, is_quiet=True)
        )

    def _note(self, want: Want, decision: AccessDecision) -> None:
        self._notes.note(
            self._principal,
            self._host,
            self._client_id,
            self._api,
            want.operation,
            want.resource_type,
            want.name,
            decision,
        )


def operations_of(access: Access | None, resource_type: ResourceType, name: str) -> int:
    """The allowed operations on a resource; without an authorizer, all that it has."""
    if access is None:
        return ALL_OPERATIONS[resource_type]
    return access.operations(resource_type, name)


def cluster_operations(access: Access | None) -> int:
    """The allowed operations on the cluster; 0 for a client that may not describe it."""
    if access is not None and not access.may(
        AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        return 0
    return operations_of(access, ResourceType.CLUSTER, CLUSTER_NAME)


ALL_OPERATIONS: Final[Mapping[ResourceType, int]] = MappingProxyType(
    {
        resource_type: sum(1 << operation for operation in operations)
        for resource_type, operations in OPERATIONS.items()
    }
)
"""All operations on a resource of a type, as a bit field."""
