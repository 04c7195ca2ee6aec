"""Rules in a short notation for tests."""

from __future__ import annotations

from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.state.acl_table import AclTable
from tidelog.security.acl_codes import AclOperation, PatternType, PermissionType, ResourceType


def rule(
    operation: str,
    name: str,
    *,
    of: str = "TOPIC",
    principal: str = "User:alice",
    host: str = "*",
    prefixed: bool = False,
    deny: bool = False,
) -> AclRule:
    """Allow alice one operation on one topic. Arguments replace these defaults."""
    return AclRule(
        ResourceType[of],
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        name,
        principal,
        host,
        AclOperation[operation],
        PermissionType.DENY if deny else PermissionType.ALLOW,
    )


def table_of(*rules: AclRule) -> AclTable:
    """A table of these rules alone."""
    return AclTable().changed(rules, ())
