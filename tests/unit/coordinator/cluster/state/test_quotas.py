"""Quotas of clients in the cluster's state."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.coordinator.cluster.samples import after, cluster, registered
from tidelog.coordinator.cluster.log.append_group import compose
from tidelog.coordinator.cluster.records.client_quotas import (
    DEFAULT_NAME,
    NAME_BYTES_MAX,
    QuotaEntity,
    address,
)
from tidelog.coordinator.cluster.records.records import (
    LEVEL_VERSION,
    QUOTAS_VERSION,
    QuotasChanged,
)
from tidelog.coordinator.cluster.state import setting_transitions
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.features import FeatureRefused
from tidelog.coordinator.cluster.state.quota_changes import altering
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.errors import CorruptObject
from tidelog.identifiers import Epoch

ALICE, APP = QuotaEntity(user="alice"), QuotaEntity(user="alice", client_id=DEFAULT_NAME)
HOST = QuotaEntity(ip="10.0.0.1")
RATES = {"producer_byte_rate": 1e6, "request_percentage": 12.5}
KEY = "cluster/snapshot/00000000000000000009.json"


def modern() -> ClusterState:
    """A cluster of one broker that knows quotas."""
    return after(cluster(), None, replace(registered(1), version=QUOTAS_VERSION))


def with_quotas() -> ClusterState:
    return after(modern(), 1, QuotasChanged(ALICE, RATES), QuotasChanged(APP, {**RATES}))


def test_quotas_come_change_and_go() -> None:
    state = with_quotas()
    assert state.quotas == {ALICE: RATES, APP: RATES}
    state = after(state, 1, QuotasChanged(ALICE, {"consumer_byte_rate": 5.0}))
    assert state.quotas == {ALICE: {"consumer_byte_rate": 5.0}, APP: RATES}
    state = after(state, 1, QuotasChanged(ALICE, {}), QuotasChanged(APP, {}))
    assert state.quotas == {}


def test_the_quotas_stay_the_same_object_until_they_change() -> None:
    state = with_quotas()
    assert after(state, None, registered(2)).quotas is state.quotas


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (QuotasChanged(QuotaEntity(), RATES), "empty client quota entity"),
        (QuotasChanged(QuotaEntity(user="a", ip="10.0.0.1"), RATES), "should not be combined"),
        (QuotasChanged(QuotaEntity(ip="harbour"), RATES), "harbour is not a valid IP address"),
        (QuotasChanged(HOST, RATES), "Invalid configuration key producer_byte_rate"),
        (QuotasChanged(ALICE, {"connection_creation_rate": 5.0}), "Invalid configuration key"),
        (QuotasChanged(ALICE, {"retention.ms": 5.0}), "Invalid configuration key retention.ms"),
        (QuotasChanged(ALICE, {"producer_byte_rate": 0.0}), "must be greater than 0"),
        (QuotasChanged(ALICE, {"request_percentage": -1.0}), "must be greater than 0"),
        (QuotasChanged(ALICE, {"producer_byte_rate": 1.5}), "cannot be a fractional value"),
        (QuotasChanged(ALICE, {"producer_byte_rate": 1e19}), "too large"),
        (QuotasChanged(HOST, {"connection_creation_rate": 2.0**31}), "at most 2147483647"),
        (QuotasChanged(ALICE, {"request_percentage": float("inf")}), "must be a finite number"),
        (QuotasChanged(ALICE, {"request_percentage": float("nan")}), "must be a finite number"),
        (QuotasChanged(QuotaEntity("a" * (NAME_BYTES_MAX + 1)), RATES), "has at most 1024 bytes"),
        (QuotasChanged(QuotaEntity("bob"), {}), "there are no quotas of user bob"),
    ],
)
def test_quotas_that_make_no_sense_are_refused(change: QuotasChanged, why: str) -> None:
    with pytest.raises(InvalidRecord, match=why):
        after(with_quotas(), 1, change)


def test_the_number_of_entities_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_transitions, "QUOTA_ENTITIES_MAX", 2)
    with pytest.raises(InvalidRecord, match="have quotas already"):
        after(with_quotas(), 1, QuotasChanged(QuotaEntity("bob"), RATES))
    state = after(with_quotas(), 1, QuotasChanged(APP, {"request_percentage": 5.0}))
    after(state, 1, QuotasChanged(APP, {}), QuotasChanged(QuotaEntity("bob"), RATES))


def test_only_a_snapshot_with_quotas_is_refused_by_releases_without_quotas() -> None:
    state = with_quotas()
    members = json.loads(encode_snapshot(state, 5))
    assert members["format"] == 9
    assert members["quotas"][0] == {
        "entity": {"user": "alice", "client_id": None, "ip": None},
        "quotas": RATES,
    }
    assert decode_snapshot(KEY, encode_snapshot(state, 5)) == state
    without = after(state, 1, QuotasChanged(ALICE, {}), QuotasChanged(APP, {}))
    members = json.loads(encode_snapshot(without, 5))
    assert members["format"] == 4
    assert "quotas" not in members


def test_a_snapshot_with_one_entity_twice_is_corrupt() -> None:
    text = encode_snapshot(with_quotas(), 5).decode()
    members = json.loads(text)
    twice = members["quotas"][0]

    class Twice(dict[QuotaEntity, object]):
        def items(self):  # type: ignore[no-untyped-def,override]
            return [(ALICE, twice["quotas"])] * 2

    with pytest.raises(CorruptObject, match="the quotas of one entity twice"):
        decode_snapshot(KEY, encode_snapshot(replace(with_quotas(), quotas=Twice(a=1)), 5))


def test_changing_again_changes_nothing() -> None:
    state = with_quotas()
    assert altering(state, {ALICE: RATES}) == ()
    assert altering(state, {HOST: {"connection_creation_rate": None}}) == ()
    assert altering(
        state, {ALICE: {"producer_byte_rate": None, "consumer_byte_rate": 5.0}, APP: RATES}
    ) == (QuotasChanged(ALICE, {"request_percentage": 12.5, "consumer_byte_rate": 5.0}),)
    assert altering(state, {APP: dict.fromkeys(RATES)}) == (QuotasChanged(APP, {}),)


def test_a_broker_that_knows_no_quotas_must_be_upgraded_first() -> None:
    state = after(modern(), None, replace(registered(2), version=LEVEL_VERSION))
    change = QuotasChanged(ALICE, RATES)
    (error,) = compose(state, Epoch(1), [lambda _: [change]]).errors
    assert isinstance(error, FeatureRefused)
    assert "cannot read QuotasChanged: 2; upgrade them first" in str(error)


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("localhost", None),
        ("", None),
    ],
)
def test_addresses_have_one_form(text: str, usual: str | None) -> None:
    assert address(text) == usual
