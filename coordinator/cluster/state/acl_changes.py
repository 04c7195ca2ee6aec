"""Decides which records create or delete access control rules. Pure.

Both may be repeated: a rule that exists is not created again, and a rule that is gone is not
deleted. So a client whose answer was lost asks again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.coordinator.cluster.records.acl_rules import AclFilter, AclRule
from tidelog.coordinator.cluster.records.records import ACL_VERSION, AclsChanged
from tidelog.coordinator.cluster.state.features import lacking, named
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused

ACL_CHANGES_MAX = 10_000
"""Rules that one request creates or deletes, as in Kafka."""


class AclsRefused(Refused):
    """The rules cannot be changed now; nothing was changed."""


class TooManyChanges(AclsRefused):
    """One request creates or deletes too many rules."""


def creating(state: ClusterState, rules: Sequence[AclRule]) -> tuple[AclsChanged, ...]:
    """The record that creates those rules that do not exist; none if all do. AclsRefused."""
    missing = tuple([rule for rule in dict.fromkeys(rules) if rule not in state.acls])
    return _checked(state, AclsChanged(created=missing))


def deleting(
    state: ClusterState, filters: Sequence[AclFilter]
) -> tuple[list[list[AclRule]], tuple[AclsChanged, ...]]:
    """The rules that each filter selects, and the record that deletes them. AclsRefused."""
    selected = [list(state.acls.selected(each)) for each in filters]
    every = dict.fromkeys(rule for rules in selected for rule in rules)
    return selected, _checked(state, AclsChanged(deleted=tuple(every)))


def _checked(state: ClusterState, change: AclsChanged) -> tuple[AclsChanged, ...]:
    count = len(change.created) + len(change.deleted)
    if not count:
        return ()
    if count > ACL_CHANGES_MAX:
        raise TooManyChanges(
            f"the request changes {count} rules, and at most {ACL_CHANGES_MAX} are changed at once;"
            " send several requests"
        )
    old = lacking(state, ACL_VERSION)
    if old:
        raise AclsRefused(
            "these brokers are of an earlier release, which knows no access control rules:"
            f" {named(old)}; upgrade them first"
        )
    return (change,)
