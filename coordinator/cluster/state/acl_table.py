"""All access control rules of the cluster, by resource and principal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.coordinator.cluster.records.acl_rules import AclFilter, AclRule, ResourcePattern

ACL_RULES_MAX = 100_000
"""Rules of a cluster."""

RulesByPrincipal: TypeAlias = Mapping[str, tuple[AclRule, ...]]


@dataclass(frozen=True, slots=True)
class AclTable:
    """Immutable. Tables share the rules of unchanged resources."""

    by_resource: Mapping[ResourcePattern, RulesByPrincipal] = field(default_factory=dict)
    count: int = 0

    def __iter__(self) -> Iterator[AclRule]:
        """All rules, by resource in order of their creation."""
        for by_principal in self.by_resource.values():
            for rules in by_principal.values():
                yield from rules

    def __contains__(self, rule: AclRule) -> bool:
        return rule in self.by_resource.get(rule.resource, {}).get(rule.principal, ())

    def selected(self, chosen: AclFilter) -> Iterator[AclRule]:
        """The rules that a filter selects."""
        for resource, by_principal in self.by_resource.items():
            if not chosen.selects_resource(resource):
                continue
            for rules in by_principal.values():
                yield from filter(chosen.selects, rules)

    def changed(self, added: Iterable[AclRule], removed: Iterable[AclRule]) -> AclTable:
        """The table with some new rules and without some that it has."""
        by_resource = dict(self.by_resource)
        count = self.count
        copied: dict[ResourcePattern, dict[str, tuple[AclRule, ...]]] = {}

        def own(resource: ResourcePattern) -> dict[str, tuple[AclRule, ...]]:
            if resource not in copied:
                by_resource[resource] = copied[resource] = dict(by_resource.get(resource, {}))
            return copied[resource]

        for rule in added:
            by_principal = own(rule.resource)
            by_principal[rule.principal] = (*by_principal.get(rule.principal, ()), rule)
            count += 1
        for rule in removed:
            by_principal = own(rule.resource)
            left = tuple([each for each in by_principal[rule.principal] if each != rule])
            if left:
                by_principal[rule.principal] = left
            else:
                del by_principal[rule.principal]
            count -= 1
        for resource, rest in copied.items():
            if not rest:
                del by_resource[resource]
        return AclTable(by_resource, count)
