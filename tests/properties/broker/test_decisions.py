"""Decisions agree with a naive reading of all rules, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.authorization.decisions import Asker, decide, decide_for_any
from tidelog.coordinator.cluster.records.acl_rules import AclFilter, AclRule
from tidelog.coordinator.cluster.state.acl_table import AclTable
from tidelog.security.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.security.principal import Principal

OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
DESCRIBING = {
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
}
# Few values, so that rules and questions often meet.
NAMES = st.text("ab", min_size=1, max_size=4)
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
HOSTS = st.sampled_from(["h1", "h2"])
RULES = st.builds(
    AclRule,
    TYPES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    NAMES | st.just("*"),
    st.sampled_from(["User:u1", "User:u2", "User:*", "Group:g1", "Group:u1"]),
    HOSTS | st.just("*"),
    st.sampled_from(OPERATIONS),
    st.sampled_from([PermissionType.ALLOW, PermissionType.DENY]),
)
RULE_LISTS = st.lists(RULES, max_size=12, unique=True)
ASKERS = st.builds(
    Asker,
    st.builds(
        Principal,
        st.sampled_from(["u1", "u2"]),
        st.sampled_from([(), ("g1",), ("g1", "g2")]),
        st.just("User"),
    ),
    HOSTS,
)


def is_about(rule: AclRule, resource_type: ResourceType, name: str) -> bool:
    if rule.resource_type is not resource_type:
        return False
    if rule.pattern is PatternType.LITERAL:
        return rule.name in (name, "*")
    return name.startswith(rule.name)


def is_of(rule: AclRule, asker: Asker) -> bool:
    principals = {"User:*", f"User:{asker.principal.name}"}
    principals |= {f"Group:{group}" for group in asker.principal.groups}
    return rule.principal in principals and rule.host in ("*", asker.host)


def covers(rule: AclRule, operation: AclOperation) -> bool:
    if rule.operation in (AclOperation.ALL, operation):
        return True
    if rule.permission is PermissionType.DENY:
        return False
    if operation is AclOperation.DESCRIBE:
        return rule.operation in DESCRIBING
    return (operation, rule.operation) == (
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    )


def naive(
    rules: Sequence[AclRule],
    asker: Asker,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    if_no_rule: bool,
) -> bool:
    about = [each for each in rules if is_about(each, resource_type, name)]
    matching = [each for each in about if is_of(each, asker) and covers(each, operation)]
    if any(each.permission is PermissionType.DENY for each in matching):
        return False
    return bool(matching) or (not about and if_no_rule)


@given(RULE_LISTS, ASKERS, st.sampled_from(OPERATIONS[1:]), TYPES, NAMES, st.booleans())
def test_a_decision_is_that_of_a_naive_reading(
    rules: list[AclRule],
    asker: Asker,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    if_no_rule: bool,
) -> None:
    table = AclTable().changed(rules, ())
    found = decide(table, asker, operation, resource_type, name, if_no_rule=if_no_rule)
    assert found.is_allowed == naive(rules, asker, operation, resource_type, name, if_no_rule)
    if found.rule is not None:
        assert (found.rule.permission is PermissionType.ALLOW) == found.is_allowed
        assert is_of(found.rule, asker)
        assert is_about(found.rule, resource_type, name)


@given(RULE_LISTS, ASKERS, TYPES)
def test_a_permission_for_some_name_is_one_for_any(
    rules: list[AclRule], asker: Asker, resource_type: ResourceType
) -> None:
    table = AclTable().changed(rules, ())
    write = AclOperation.WRITE
    found = decide_for_any(table, asker, write, resource_type, if_no_rule=False)
    names = {rule.name for rule in rules} | {"c", "hardcode"}
    some = any(naive(rules, asker, write, resource_type, name, False) for name in names)
    if some:
        assert found.is_allowed
    if found.is_allowed:
        beyond = {f"{name}-no-rule-names-this" for name in names}
        assert any(
            naive(rules, asker, write, resource_type, name, False) for name in names | beyond
        )


@given(RULE_LISTS, st.data())
def test_a_table_has_the_rules_that_were_added_and_not_removed(
    rules: list[AclRule], data: st.DataObject
) -> None:
    kept = data.draw(st.sets(st.sampled_from(rules))) if rules else set()
    removed = [rule for rule in rules if rule not in kept]
    table = AclTable().changed(rules, ())
    left = table.changed((), removed)
    assert (set(left), left.count) == (kept, len(kept))
    assert (set(table), table.count) == (set(rules), len(rules))
    assert all((rule in left) == (rule in kept) for rule in rules)
    # No empty leftovers: two ways to the same rules give equal tables.
    assert left.by_resource.keys() == {rule.resource for rule in kept}
    assert left.changed((), list(left)) == AclTable()


@given(RULE_LISTS, RULES, NAMES)
def test_filters_select_the_rules_that_they_describe(
    rules: list[AclRule], pattern: AclRule, name: str
) -> None:
    table = AclTable().changed(rules, ())
    assert set(table.selected(AclFilter())) == set(rules)
    exact = AclFilter(
        pattern.resource_type,
        pattern.pattern,
        pattern.name,
        pattern.principal,
        pattern.host,
        pattern.operation,
        pattern.permission,
    )
    assert set(table.selected(exact)) == {rule for rule in rules if rule == pattern}
    matching = AclFilter(ResourceType.TOPIC, PatternType.MATCH, name)
    assert set(table.selected(matching)) == {
        rule for rule in rules if is_about(rule, ResourceType.TOPIC, name)
    }
