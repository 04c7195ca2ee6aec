"""All access control rules of the cluster, by resource and principal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

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
        news, gone = _grouped(added), _grouped(removed)
        for resource in {**news, **gone}:
            by_principal = dict(by_resource.get(resource, {}))
            for principal, rules in news.get(resource, {}).items():
                by_principal[principal] = (*by_principal.get(principal, ()), *rules)
            for principal, lost in gone.get(resource, {}).items():
                left = [rule for rule in by_principal[principal] if rule not in lost]
                by_principal[principal] = tuple(left)
            by_resource[resource] = {name: rules for name, rules in by_principal.items() if rules}
            if not by_resource[resource]:
                del by_resource[resource]
        return AclTable(by_resource, self.count + _count(news) - _count(gone))


_Groups: TypeAlias = dict[ResourcePattern, dict[str, dict[AclRule, None]]]
"""Different rules by resource and principal, in their order."""


def _grouped(rules: Iterable[AclRule]) -> _Groups:
    groups: _Groups = {}
    for rule in rules:
        groups.setdefault(rule.resource, {}).setdefault(rule.principal, {})[rule] = None
    return groups


def _count(groups: _Groups) -> int:
    return sum(len(rules) for by_name in groups.values() for rules in by_name.values())


NO_RULES: Final = AclTable()
