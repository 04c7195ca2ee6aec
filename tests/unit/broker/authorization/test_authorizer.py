"""The authorizer's settings and its memory of decisions."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.unit.coordinator.cluster.acls import rule, table_of
from tidelog.broker.authorization.authorizer import Authorizer, open_authorizer, super_users
from tidelog.broker.authorization.decisions import Ground
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.state.acl_table import AclTable
from tidelog.errors import InvalidConfiguration
from tidelog.security.acl_codes import AclOperation, ResourceType
from tidelog.security.principal import ANONYMOUS, Principal

ALICE = Principal("alice")


class Rules:
    """Rules that a test replaces. Counts how often the authorizer reads all of them."""

    def __init__(self, table: AclTable) -> None:
        self.table = table

    def authorizer(self, *super_users: str, decisions_max: int = 100) -> Authorizer:
        return Authorizer(
            lambda: self.table,
            frozenset(super_users),
            allow_without_rules=False,
            decisions_max=decisions_max,
        )


def may_read(authorizer: Authorizer, name: str, principal: Principal = ALICE) -> bool:
    topic = ResourceType.TOPIC
    return authorizer.decision(principal, "10.0.0.1", AclOperation.READ, topic, name).is_allowed


def test_changed_rules_hold_at_once() -> None:
    rules = Rules(table_of(rule("READ", "orders")))
    authorizer = rules.authorizer()
    assert may_read(authorizer, "orders")
    rules.table = rules.table.changed((rule("READ", "orders", deny=True),), ())
    assert not may_read(authorizer, "orders")
    rules.table = rules.table.changed((), (rule("READ", "orders", deny=True),))
    assert may_read(authorizer, "orders")


def test_a_repeated_question_gets_the_same_decision_object() -> None:
    authorizer = Rules(table_of(rule("READ", "*"))).authorizer()
    question = (ALICE, "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, "orders")
    first = authorizer.decision(*question)
    assert authorizer.decision(*question) is first
    # The authorizer decides anew for another host or another principal.
    for other in ((ALICE, "10.0.0.2"), (Principal("bob"), "10.0.0.1")):
        assert authorizer.decision(*other, *question[2:]) is not first


def test_a_repeated_question_takes_no_memory_and_reads_no_rule_of_ten_thousand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = [rule("READ", f"t{number}", prefixed=number % 2 == 0) for number in range(10_000)]
    rules = Rules(table_of(*many, rule("READ", "orders")))
    authorizer, granted = rules.authorizer(), rules.authorizer().granted()
    granted.add(ALICE, "10.0.0.1", ["orders"])
    keys = ["orders"]

    def ask() -> None:
        for _ in range(1000):
            assert may_read(authorizer, "orders")
            assert granted.includes(ALICE, "10.0.0.1", keys)

    ask()
    # From here on a decision by the rules would be an error.
    monkeypatch.setattr(authorizer, "_decide", None)
    tracemalloc.start()
    try:
        ask()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        ask()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept - before < 256
    # The authorizer allocates only the question, a tuple, and releases it.
    assert peak - before < 1024


def test_the_memory_of_decisions_is_bounded() -> None:
    authorizer = Rules(table_of(rule("READ", "t", prefixed=True))).authorizer(decisions_max=3)
    for number in range(20):
        assert may_read(authorizer, f"t{number}")
        assert len(authorizer._decisions) <= 3


def test_permissions_are_cached_until_the_rules_change() -> None:
    rules = Rules(table_of(rule("WRITE", "orders")))
    granted = rules.authorizer(decisions_max=3).granted()
    assert not granted.includes(ALICE, "h", ["orders"])
    granted.add(ALICE, "h", ["orders", ("booking",)])
    assert granted.includes(ALICE, "h", ["orders"])
    assert granted.includes(ALICE, "h", [("booking",), "orders"])
    assert granted.includes(ALICE, "h", [])
    # A transactional id is no topic. Another name, host or principal has no permission.
    assert not granted.includes(ALICE, "h", ["orders", "booking"])
    assert not granted.includes(ALICE, "other", ["orders"])
    assert not granted.includes(Principal("alice", ("admins",)), "h", ["orders"])
    rules.table = rules.table.changed((rule("WRITE", "orders", deny=True),), ())
    assert not granted.includes(ALICE, "h", ["orders"])
    for number in range(20):
        granted.add(ALICE, "h", [f"t{number}"])
        assert sum(map(len, granted._by_asker.values())) <= 3


def test_super_users_may_do_everything_in_spite_of_denials() -> None:
    rules = Rules(table_of(rule("ALL", "*", principal="User:*", deny=True)))
    authorizer = rules.authorizer("User:alice", "Group:admins")
    assert may_read(authorizer, "orders")
    assert may_read(authorizer, "orders", Principal("bob", ("admins",)))
    assert not may_read(authorizer, "orders", Principal("bob"))
    assert not may_read(authorizer, "orders", ANONYMOUS)
    any_topic = (AclOperation.WRITE, ResourceType.TOPIC, None)
    assert authorizer.decision(ALICE, "h", *any_topic).ground is Ground.SUPER_USER
    assert not authorizer.decision(ANONYMOUS, "h", *any_topic).is_allowed


def test_super_users_are_separated_by_semicolons() -> None:
    assert super_users("") == frozenset()
    assert super_users("User:CN=a,O=b; User:c ;") == {"User:CN=a,O=b", "User:c"}
    for wrong in ("User:a;admin", "admin", "User:", "User:a;Group: ;", "Role:x"):
        with pytest.raises(InvalidConfiguration, match=r"super.users.*User:name or Group:name"):
            BrokerSettings.of(super_users=wrong)
    for right in ("", ";", "User:a", " User:CN=a b,O=c ;Group:d;"):
        BrokerSettings.of(super_users=right)


def test_the_settings_switch_the_authorizer_on() -> None:
    standard = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert open_authorizer(BrokerSettings.of(), AclTable) is None
    for name in ("acl", standard):
        settings = BrokerSettings.of(authorizer_class_name=name, super_users="User:alice")
        authorizer = open_authorizer(settings, AclTable)
        assert authorizer is not None
        assert may_read(authorizer, "orders")
        assert not may_read(authorizer, "orders", ANONYMOUS)
    everyone = BrokerSettings.of(authorizer_class_name="acl", allow_everyone_if_no_acl_found=True)
    authorizer = open_authorizer(everyone, AclTable)
    assert authorizer is not None
    assert may_read(authorizer, "orders", ANONYMOUS)
    with pytest.raises(InvalidConfiguration, match="authorizer"):
        BrokerSettings.of(authorizer_class_name="com.example.Mine")
