"""The decision about one operation, by the cluster's rules. Pure.

The semantics are those of Kafka's StandardAuthorizer. A rule that denies wins over any that allows.
Without a matching rule the operation is denied, except that `allow.everyone.if.no.acl.found` allows
it if no rule at all is about the resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidelog.coordinator.cluster.records.acl_rules import AclRule, ResourcePattern
from tidelog.coordinator.cluster.state.acl_table import AclTable, RulesByPrincipal
from tidelog.security.acl_codes import (
    ANY_USER,
    WILDCARD,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.security.principal import Principal

_IMPLYING: Final[Mapping[AclOperation, frozenset[AclOperation]]] = MappingProxyType(
    {
        AclOperation.DESCRIBE: frozenset(
            {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
        ),
        AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
    }
)
"""By operation: the operations whose permission includes it. A denial includes no other."""
_PROBE: Final = "hardcode"
"""Kafka asks about this name first, if any resource of a type would do."""


class Ground(Enum):
    """Why a decision is as it is."""

    RULE = "rule"
    SUPER_USER = "super.users"
    NO_RULE = "no rule matches"
    NO_RULE_OF_RESOURCE = "no rule is about the resource"


class AccessDecision(NamedTuple):
    """Whether an operation is allowed, and why."""

    is_allowed: bool
    ground: Ground
    rule: AclRule | None = None


class Asker(NamedTuple):
    """The principal of a request, and its address."""

    principal: Principal
    host: str

    @property
    def names(self) -> tuple[str, ...]:
        """The principals of the rules that are about the asker."""
        groups = [f"Group:{group}" for group in self.principal.groups]
        return (str(self.principal), *groups, ANY_USER)


BY_SUPER_USER: Final = AccessDecision(True, Ground.SUPER_USER)


def decide(
    table: AclTable,
    asker: Asker,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    *,
    if_no_rule: bool,
) -> AccessDecision:
    """Whether the asker may do it. `if_no_rule`: the answer if no rule is about the resource."""
    allowing: AclRule | None = None
    is_known = False
    names = asker.names
    for rules in _about(table, resource_type, name):
        is_known = True
        for rule in _of(rules, names, asker.host):
            if rule.permission is PermissionType.DENY:
                if rule.operation in (AclOperation.ALL, operation):
                    return AccessDecision(False, Ground.RULE, rule)
            elif allowing is None and _permits(rule, operation):
                allowing = rule
    if allowing is not None:
        return AccessDecision(True, Ground.RULE, allowing)
    if is_known:
        return AccessDecision(False, Ground.NO_RULE)
    return AccessDecision(if_no_rule, Ground.NO_RULE_OF_RESOURCE)


def decide_for_any(
    table: AclTable,
    asker: Asker,
    operation: AclOperation,
    resource_type: ResourceType,
    *,
    if_no_rule: bool,
) -> AccessDecision:
    """Whether the asker may do it with any resource of the type, existing or not.

    Implied operations do not count here, as in Kafka.
    """
    probe = decide(table, asker, operation, resource_type, _PROBE, if_no_rule=if_no_rule)
    if probe.is_allowed:
        return probe
    names = asker.names
    allowing: dict[ResourcePattern, AclRule] = {}
    denied: set[ResourcePattern] = set()
    for resource, by_principal in table.by_resource.items():
        if resource.type is not resource_type:
            continue
        for rule in _of(by_principal, names, asker.host):
            if rule.operation not in (AclOperation.ALL, operation):
                continue
            if rule.permission is PermissionType.ALLOW:
                allowing[resource] = rule
                continue
            if resource.pattern is PatternType.LITERAL and resource.name == WILDCARD:
                return AccessDecision(False, Ground.RULE, rule)
            denied.add(resource)
    for resource, rule in allowing.items():
        if resource.pattern is PatternType.LITERAL and resource.name == WILDCARD:
            return AccessDecision(True, Ground.RULE, rule)
        if resource not in denied and denied.isdisjoint(_prefixes(resource_type, resource.name)):
            return AccessDecision(True, Ground.RULE, rule)
    return AccessDecision(False, Ground.NO_RULE)


def _about(table: AclTable, resource_type: ResourceType, name: str) -> Iterator[RulesByPrincipal]:
    """The rules of each pattern that a resource matches."""
    known = table.by_resource
    for literal in (name, WILDCARD):
        rules = known.get(ResourcePattern(resource_type, PatternType.LITERAL, literal))
        if rules is not None:
            yield rules
    for prefix in _prefixes(resource_type, name):
        rules = known.get(prefix)
        if rules is not None:
            yield rules


def _prefixes(resource_type: ResourceType, name: str) -> Iterator[ResourcePattern]:
    for length in range(1, len(name) + 1):
        yield ResourcePattern(resource_type, PatternType.PREFIXED, name[:length])


def _of(rules: RulesByPrincipal, names: tuple[str, ...], host: str) -> Iterator[AclRule]:
    for name in names:
        for rule in rules.get(name, ()):
            if rule.host in (WILDCARD, host):
                yield rule


def _permits(rule: AclRule, operation: AclOperation) -> bool:
    return rule.operation in (AclOperation.ALL, operation) or rule.operation in _IMPLYING.get(
        operation, ()
    )
