"""Access control rules in the cluster's state."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.coordinator.cluster.acls import rule
from tests.unit.coordinator.cluster.samples import after, cluster, harbour, registered
from tidelog.coordinator.cluster.records.acl_rules import NAME_BYTES_MAX, AclFilter, AclRule
from tidelog.coordinator.cluster.records.records import (
    ACL_VERSION,
    DRAIN_VERSION,
    AclsChanged,
    DrainChanged,
)
from tidelog.coordinator.cluster.state import acl_changes, setting_transitions
from tidelog.coordinator.cluster.state.acl_changes import (
    AclsRefused,
    TooManyChanges,
    creating,
    deleting,
)
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.errors import CorruptObject
from tidelog.identifiers import Epoch
from tidelog.security.acl_codes import AclOperation, PatternType, PermissionType, ResourceType

READ, WRITE = rule("READ", "flights"), rule("WRITE", "flights")
KEY = "cluster/snapshot/00000000000000000009.json"


def modern() -> ClusterState:
    """A cluster of one broker that knows rules."""
    return after(cluster(), None, replace(registered(1), version=ACL_VERSION))


def with_rules(*rules: AclRule) -> ClusterState:
    return after(modern(), 1, AclsChanged(rules))


def test_rules_come_and_go_in_one_entry() -> None:
    state = with_rules(READ)
    assert list(state.acls) == [READ]
    state = after(state, 1, AclsChanged((WRITE,), (READ,)))
    assert list(state.acls) == [WRITE]
    assert after(state, 1, AclsChanged((), (WRITE,))).acls == modern().acls


def test_the_rules_stay_the_same_object_until_they_change() -> None:
    """The authorizer relies on this to know that its decisions still hold."""
    state = with_rules(READ)
    drained = after(harbour(), 1, DrainChanged(Epoch(2), draining=True))
    assert drained.acls is harbour().acls
    assert after(state, None, registered(2)).acls is state.acls
    assert after(state, 1, AclsChanged((WRITE,))).acls is not state.acls


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (AclsChanged((READ,)), "there is a rule .*flights.* already"),
        (AclsChanged((WRITE, WRITE)), "it names a rule twice"),
        (AclsChanged((), (READ, READ)), "it names a rule twice"),
        (AclsChanged((), (WRITE,)), "there is no rule"),
        (AclsChanged((rule("READ", ""),)), "resource has 1 to 1024 bytes, not 0"),
        (AclsChanged((rule("READ", "a" * (NAME_BYTES_MAX + 1)),)), "1024 bytes, not 1025"),
        (AclsChanged((rule("READ", "a", host=""),)), "host has 1 to 1024 bytes"),
        (AclsChanged((rule("READ", "a", principal="alice"),)), "has not the form User:name"),
        (AclsChanged((rule("READ", "a", principal="User:"),)), "has not the form User:name"),
        (AclsChanged((rule("ANY", "a"),)), "ANY is no operation of a rule"),
        (AclsChanged((rule("READ", "a", of="USER"),)), "resource type USER has no rules"),
        (AclsChanged((rule("READ", "a", of="DELEGATION_TOKEN"),)), "has no rules"),
        (AclsChanged((replace(READ, pattern=PatternType.MATCH),)), "literal or prefixed"),
        (AclsChanged((replace(READ, permission=PermissionType.ANY),)), "allows or denies"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: AclsChanged, why: str) -> None:
    with pytest.raises(InvalidRecord, match=why):
        after(with_rules(READ), 1, change)


def test_the_number_of_rules_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_transitions, "ACL_RULES_MAX", 2)
    state = with_rules(READ, WRITE)
    with pytest.raises(InvalidRecord, match="takes at most 2; delete some"):
        after(state, 1, AclsChanged((rule("READ", "delays"),)))
    after(after(state, 1, AclsChanged((), (READ,))), 1, AclsChanged((rule("READ", "delays"),)))


def test_only_a_snapshot_with_rules_is_refused_by_releases_without_rules() -> None:
    state = with_rules(READ, WRITE, rule("ALL", "*", principal="User:bob", deny=True))
    members = json.loads(encode_snapshot(state, 5))
    assert members["format"] == 6
    assert "draining" not in members
    restored = decode_snapshot(KEY, encode_snapshot(state, 5))
    assert restored == state
    assert list(restored.acls) == list(state.acls)
    assert encode_snapshot(restored, 5) == encode_snapshot(state, 5)
    without = after(state, 1, AclsChanged((), tuple(state.acls)))
    members = json.loads(encode_snapshot(without, 5))
    assert members["format"] == 4
    assert "acls" not in members


def test_a_snapshot_with_rules_and_a_drain_has_both() -> None:
    state = after(with_rules(READ), None, replace(registered(2), version=ACL_VERSION))
    state = after(state, 1, DrainChanged(Epoch(3), draining=True))
    assert json.loads(encode_snapshot(state, 5))["format"] == 6
    assert decode_snapshot(KEY, encode_snapshot(state, 5)) == state


def test_a_snapshot_with_one_rule_twice_is_corrupt() -> None:
    state = with_rules(READ)
    twice = replace(
        state, acls=replace(state.acls, by_resource={READ.resource: {"": (READ, READ)}})
    )
    with pytest.raises(CorruptObject, match="a rule twice"):
        decode_snapshot(KEY, encode_snapshot(twice, 5))


def test_creating_again_changes_nothing() -> None:
    state = with_rules(READ)
    assert creating(state, [READ]) == ()
    assert creating(state, [READ, WRITE, WRITE]) == (AclsChanged((WRITE,)),)


def test_deleting_again_changes_nothing() -> None:
    state = with_rules(READ, WRITE)
    reads = AclFilter(operation=AclOperation.READ)
    flights = AclFilter(ResourceType.TOPIC, PatternType.MATCH, "flights")
    selected, changes = deleting(state, [reads, flights])
    assert selected == [[READ], [READ, WRITE]]
    assert changes == (AclsChanged(deleted=(READ, WRITE)),)
    assert deleting(after(state, 1, *changes), [reads, flights]) == ([[], []], ())


def test_a_broker_that_knows_no_rules_must_be_upgraded_first() -> None:
    state = after(modern(), None, replace(registered(2), version=DRAIN_VERSION))
    with pytest.raises(AclsRefused, match="knows no access control rules: 2; upgrade"):
        creating(state, [READ])
    # A deletion that matches no rule is allowed in any cluster.
    assert deleting(state, [AclFilter()]) == ([[]], ())


def test_one_request_changes_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ACL_CHANGES_MAX", 1)
    assert creating(modern(), [READ])
    with pytest.raises(TooManyChanges, match="changes 2 rules, and at most 1"):
        creating(modern(), [READ, WRITE])
