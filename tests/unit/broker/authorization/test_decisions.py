"""The decisions of access control rules."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.cluster.acls import rule, table_of
from tidelog.broker.authorization.decisions import (
    AccessDecision,
    Asker,
    Ground,
    decide,
    decide_for_any,
)
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.security.acl_codes import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.security.principal import Principal

ALICE = Asker(Principal("alice"), "10.0.0.1")
BOB = Asker(Principal("bob"), "10.0.0.1")


def decided(
    rules: tuple[AclRule, ...],
    operation: str,
    name: str = "orders",
    *,
    asker: Asker = ALICE,
    of: str = "TOPIC",
    if_no_rule: bool = False,
) -> AccessDecision:
    return decide(
        table_of(*rules),
        asker,
        AclOperation[operation],
        ResourceType[of],
        name,
        if_no_rule=if_no_rule,
    )


def test_without_a_rule_the_setting_decides() -> None:
    assert decided((), "READ") == AccessDecision(False, Ground.NO_RULE_OF_RESOURCE)
    assert decided((), "READ", if_no_rule=True).is_allowed


def test_a_rule_for_another_user_ends_the_access_of_everyone() -> None:
    found = decided((rule("READ", "orders", principal="User:bob"),), "READ", if_no_rule=True)
    assert found == AccessDecision(False, Ground.NO_RULE)
    elsewhere = (rule("READ", "payments", principal="User:bob"),)
    assert decided(elsewhere, "READ", if_no_rule=True).is_allowed


def test_an_allowing_rule_names_itself() -> None:
    allowing = rule("READ", "orders")
    assert decided((allowing,), "READ") == AccessDecision(True, Ground.RULE, allowing)
    assert not decided((allowing,), "READ", asker=BOB).is_allowed
    assert not decided((allowing,), "READ", "orders2").is_allowed
    assert not decided((allowing,), "WRITE").is_allowed
    assert not decided((allowing,), "READ", of="GROUP").is_allowed


@pytest.mark.parametrize(
    "denying",
    [
        rule("READ", "orders", deny=True),
        rule("ALL", "orders", deny=True),
        rule("READ", "*", deny=True),
        rule("READ", "ord", prefixed=True, deny=True),
        rule("READ", "orders", principal="User:*", deny=True),
        rule("READ", "orders", host="10.0.0.1", deny=True),
    ],
    ids=str,
)
def test_a_denial_wins_over_every_permission(denying: AclRule) -> None:
    allowing = (rule("ALL", "*", principal="User:*"), rule("READ", "orders"))
    assert decided((*allowing, denying), "READ") == AccessDecision(False, Ground.RULE, denying)
    assert decided((denying, *allowing), "READ") == AccessDecision(False, Ground.RULE, denying)


def test_a_denial_for_another_host_or_operation_does_not_matter() -> None:
    allowing = rule("READ", "orders")
    for other in (
        rule("READ", "orders", host="10.0.0.2", deny=True),
        rule("WRITE", "orders", deny=True),
    ):
        assert decided((allowing, other), "READ").is_allowed


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE", "ALTER", "ALL", "DESCRIBE"])
def test_permissions_that_include_describe(operation: str) -> None:
    assert decided((rule(operation, "orders"),), "DESCRIBE").is_allowed


@pytest.mark.parametrize("operation", ["CREATE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"])
def test_permissions_that_do_not_include_describe(operation: str) -> None:
    assert not decided((rule(operation, "orders"),), "DESCRIBE").is_allowed


def test_altering_settings_includes_reading_settings() -> None:
    assert decided((rule("ALTER_CONFIGS", "orders"),), "DESCRIBE_CONFIGS").is_allowed
    assert not decided((rule("ALTER", "orders"),), "DESCRIBE_CONFIGS").is_allowed


def test_a_denial_includes_no_other_operation() -> None:
    rules = (rule("READ", "orders", deny=True), rule("DESCRIBE", "orders"))
    assert decided(rules, "DESCRIBE").is_allowed
    assert not decided(rules, "READ").is_allowed


def test_the_longest_and_the_shortest_prefix_count() -> None:
    for prefix in ("o", "ord", "orders"):
        assert decided((rule("READ", prefix, prefixed=True),), "READ").is_allowed
    for prefix in ("orders2", "p"):
        assert not decided((rule("READ", prefix, prefixed=True),), "READ").is_allowed


def test_a_literal_star_is_all_resources_of_its_type_and_a_prefixed_star_is_none() -> None:
    assert decided((rule("READ", "*"),), "READ").is_allowed
    assert not decided((rule("READ", "*", of="GROUP"),), "READ").is_allowed
    assert not decided((rule("READ", "*", prefixed=True),), "READ").is_allowed


def test_a_group_of_the_principal_has_rules() -> None:
    readers = (rule("READ", "orders", principal="Group:readers"),)
    member = Asker(Principal("carol", ("writers", "readers")), "10.0.0.1")
    assert decided(readers, "READ", asker=member).is_allowed
    assert not decided(readers, "READ").is_allowed
    # A user cannot pretend to be a group by a name.
    assert not decided(readers, "READ", asker=Asker(Principal("readers"), "10.0.0.1")).is_allowed
    denied = rule("READ", "*", principal="Group:readers", deny=True)
    assert not decided(
        (rule("ALL", "*", principal="User:*"), denied), "READ", asker=member
    ).is_allowed


def test_the_cluster_is_a_resource() -> None:
    rules = (rule("ALTER", CLUSTER_NAME, of="CLUSTER"),)
    assert decided(rules, "ALTER", CLUSTER_NAME, of="CLUSTER").is_allowed
    assert decided(rules, "DESCRIBE", CLUSTER_NAME, of="CLUSTER").is_allowed
    assert not decided(rules, "CREATE", CLUSTER_NAME, of="CLUSTER").is_allowed


def may_write_some(*rules: AclRule, if_no_rule: bool = False) -> bool:
    found = decide_for_any(
        table_of(*rules), ALICE, AclOperation.WRITE, ResourceType.TOPIC, if_no_rule=if_no_rule
    )
    return found.is_allowed


def test_writing_to_any_topic_at_all() -> None:
    assert not may_write_some()
    assert may_write_some(if_no_rule=True)
    assert may_write_some(rule("WRITE", "orders"))
    assert may_write_some(rule("WRITE", "ord", prefixed=True))
    assert may_write_some(rule("ALL", "*"))
    assert not may_write_some(rule("READ", "orders"))
    assert not may_write_some(rule("WRITE", "orders", of="GROUP"))


def test_a_permission_below_a_denial_is_none() -> None:
    allowing = rule("WRITE", "orders")
    assert not may_write_some(allowing, rule("WRITE", "orders", deny=True))
    assert not may_write_some(allowing, rule("WRITE", "ord", prefixed=True, deny=True))
    assert not may_write_some(allowing, rule("WRITE", "*", deny=True))
    assert may_write_some(allowing, rule("WRITE", "orders2", deny=True))
    assert may_write_some(allowing, rule("WRITE", "pay", prefixed=True, deny=True))
    prefixed = rule("WRITE", "orders-", prefixed=True)
    assert may_write_some(prefixed, rule("WRITE", "orders-1", deny=True))
    assert not may_write_some(prefixed, rule("WRITE", "orders-", prefixed=True, deny=True))
