"""Records are written only while all live brokers read them, and only up to the cluster's level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.coordinator.cluster.log.append_group import compose
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    DRAIN_VERSION,
    FIRST_LEVEL,
    SHARING_VERSION,
    BrokerFenced,
    DrainChanged,
    LevelRaised,
    Record,
)
from tidelog.coordinator.cluster.state import features
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.features import FeatureRefused, level_of, raised
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import (
    FORMAT_OF_MEMBER,
    decode_snapshot,
    encode_snapshot,
)
from tidelog.identifiers import Epoch

NEWER = BROKER_VERSION + 1


def brokers(*versions: int) -> ClusterState:
    """Brokers with ids from 1 on, whose epochs are their ids."""
    state = after(ClusterState(), None, CLUSTER)
    for number, version in enumerate(versions, 1):
        state = after(state, None, replace(registered(number), version=version))
    return state


def written(state: ClusterState, *records: Record) -> Exception | None:
    """The error of an entry of broker 1 with these records."""
    (error,) = compose(state, Epoch(1), [lambda _: records]).errors
    return error


def test_no_record_is_written_that_a_live_broker_cannot_read() -> None:
    drain = DrainChanged(Epoch(1), True)
    old = brokers(BROKER_VERSION, SHARING_VERSION, DRAIN_VERSION)
    error = written(old, drain)
    assert isinstance(error, FeatureRefused)
    assert "cannot read DrainChanged: 2; upgrade them first" in str(error)
    assert written(after(old, 1, BrokerFenced(Epoch(2))), drain) is None
    # The entry that fences the old broker may hold the record.
    assert written(old, BrokerFenced(Epoch(2)), drain) is None
    assert written(old, BrokerFenced(Epoch(2))) is None


def test_a_record_of_a_later_release_waits_until_the_level_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`DrainChanged` plays the part of a later release's record."""
    later: Mapping[type[Record], int] = MappingProxyType({DrainChanged: NEWER})
    monkeypatch.setattr(features, "VERSION_OF_RECORD", later)
    drain = DrainChanged(Epoch(1), True)
    state = brokers(NEWER, NEWER)
    error = written(state, drain)
    assert isinstance(error, FeatureRefused)
    assert "`tidelog cluster features upgrade`" in str(error)
    state = after(state, 1, *raised(state, NEWER))
    assert written(state, drain) is None


def test_the_level_is_raised_when_all_live_brokers_have_it_and_only_then() -> None:
    state = brokers(NEWER, BROKER_VERSION)
    assert level_of(state) == FIRST_LEVEL
    with pytest.raises(FeatureRefused, match="upgrade them first"):
        raised(state, NEWER)
    with pytest.raises(InvalidRecord):
        after(state, 1, LevelRaised(NEWER))
    state = after(state, 1, BrokerFenced(Epoch(2)))
    state = after(state, 1, *raised(state, NEWER))
    assert level_of(state) == NEWER
    assert raised(state, NEWER) == raised(state, FIRST_LEVEL) == (), "a repeated request"
    for level in (NEWER, FIRST_LEVEL):
        with pytest.raises(InvalidRecord):
            after(state, 1, LevelRaised(level))
    with pytest.raises(InvalidRecord, match="below the cluster's level"):
        after(state, None, replace(registered(3), version=BROKER_VERSION))
    after(state, None, replace(registered(3), version=NEWER))


def test_a_snapshot_keeps_the_level_and_has_a_newer_format_only_with_a_level() -> None:
    state = brokers(NEWER)
    assert b'"level"' not in encode_snapshot(replace(state, checksum=1), 5)
    state = replace(after(state, 1, *raised(state, NEWER)), checksum=1)
    data = encode_snapshot(state, 5)
    assert f'"format":{FORMAT_OF_MEMBER["level"]}'.encode() in data
    assert decode_snapshot("snapshot", data) == state
