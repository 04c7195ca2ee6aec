"""Access control rules as the metadata log has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidelog.security.acl_codes import (
    OPERATIONS,
    WILDCARD,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    name_of,
)

NAME_BYTES_MAX = 1024
"""The names of a rule's resource, principal and host, each in UTF-8: it bounds the state."""


class ResourcePattern(NamedTuple):
    """The resources of a rule: one by name, all with a prefix, or all of a type (literal "*")."""

    type: ResourceType
    pattern: PatternType
    name: str

    def __str__(self) -> str:
        return f"{name_of(self.type)}:{self.pattern.name}:{self.name}"


@dataclass(frozen=True, slots=True)
class AclRule:
    """Allows or denies a principal an operation on some resources. Equal rules are one rule."""

    resource_type: ResourceType
    pattern: PatternType
    name: str
    principal: str
    """`User:name`, `Group:name`, or `User:*`."""
    host: str
    """An address, or `*`."""
    operation: AclOperation
    permission: PermissionType

    @property
    def resource(self) -> ResourcePattern:
        return ResourcePattern(self.resource_type, self.pattern, self.name)

    def fault(self) -> str | None:
        """Why the cluster does not take this rule; None if it does."""
        if self.resource_type not in OPERATIONS:
            return f"resource type {self.resource_type.name} has no rules"
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            return f"a rule's pattern is literal or prefixed, not {self.pattern.name}"
        if self.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            return f"{self.operation.name} is no operation of a rule"
        if self.permission not in (PermissionType.ALLOW, PermissionType.DENY):
            return f"a rule allows or denies, and does not {self.permission.name}"
        kind, colon, name = self.principal.partition(":")
        if not (kind and colon and name):
            return f"principal {self.principal!r} has not the form User:name"
        for what, text in (
            ("resource", self.name),
            ("principal", self.principal),
            ("host", self.host),
        ):
            size = len(text.encode(errors="surrogatepass"))
            if not 0 < size <= NAME_BYTES_MAX:
                return f"the name of a rule's {what} has 1 to {NAME_BYTES_MAX} bytes, not {size}"
        return None

    def __str__(self) -> str:
        """The form for logs: Topic:PREFIXED:orders- User:alice@* Allow Read."""
        return (
            f"{self.resource} {self.principal}@{self.host}"
            f" {name_of(self.permission)} {name_of(self.operation)}"
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects rules. None, or ANY, selects all."""

    resource_type: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: PermissionType = PermissionType.ANY

    def selects_resource(self, resource: ResourcePattern) -> bool:
        """Whether it selects rules of these resources."""
        if self.resource_type not in (ResourceType.ANY, resource.type):
            return False
        if self.pattern is PatternType.MATCH:
            if self.name is None:
                return True
            if resource.pattern is PatternType.PREFIXED:
                return self.name.startswith(resource.name)
            return resource.name in (self.name, WILDCARD)
        if self.pattern not in (PatternType.ANY, resource.pattern):
            return False
        return self.name is None or self.name == resource.name

    def selects(self, rule: AclRule) -> bool:
        """Whether it selects a rule of resources that it selects."""
        return (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (PermissionType.ANY, rule.permission)
        )
