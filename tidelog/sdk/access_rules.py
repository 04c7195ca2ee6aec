"""Access control rules as an administrator of the SDK names them, by Kafka's words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from tidelog.client.admin.acls import Acl, AclSelection
from tidelog.errors import InvalidConfiguration
from tidelog.security.acl_codes import (
    WILDCARD,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

CodeT = TypeVar("CodeT", bound=IntEnum)
_OF_FILTERS = ("UNKNOWN", "ANY", "MATCH")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """`AccessRule("User:alice", "READ", "orders")`."""

    principal: str
    operation: str
    """As READ, WRITE or ALL."""
    name: str
    """Of the resource; `*` for all, `kafka-cluster` for the cluster."""
    resource: str = "TOPIC"
    """TOPIC, GROUP, TRANSACTIONAL_ID or CLUSTER."""
    pattern: str = "LITERAL"
    """PREFIXED: `name` is a prefix."""
    host: str = WILDCARD
    permission: str = "ALLOW"
    """Or DENY."""

    def acl(self) -> Acl:
        """The rule in the protocol's codes. Raises InvalidConfiguration."""
        return Acl(
            code_of(ResourceType, self.resource),
            code_of(PatternType, self.pattern),
            self.name,
            self.principal,
            self.host,
            code_of(AclOperation, self.operation),
            code_of(PermissionType, self.permission),
        )

    def selection(self) -> AclSelection:
        """The filter that selects only this rule. Raises InvalidConfiguration."""
        return AclSelection(*self.acl())


def access_rule(acl: Acl) -> AccessRule:
    """The rule of the protocol's codes."""
    return AccessRule(
        acl.principal,
        acl.operation.name,
        acl.name,
        acl.resource_type.name,
        acl.pattern.name,
        acl.host,
        acl.permission.name,
    )


def code_of(codes: type[CodeT], word: str) -> CodeT:
    """The code of one of Kafka's words. Raises InvalidConfiguration with the words there are."""
    words = {each.name: each for each in codes if each.name not in _OF_FILTERS}
    if word not in words:
        raise InvalidConfiguration(f"{word!r} is none of {', '.join(words)}")
    return words[word]
