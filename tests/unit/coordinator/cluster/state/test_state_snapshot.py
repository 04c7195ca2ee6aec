"""Snapshots of the cluster's state: no state is lost, and damaged snapshots are refused."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.unit.coordinator.cluster.samples import (
    DELAYS,
    FLIGHTS,
    RETIRED,
    after,
    fenced,
    harbour,
    registered,
)
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    ConfigsChanged,
    ConfigScope,
    CredentialsChanged,
    DrainChanged,
    Endpoint,
    EntryRange,
    ListenersRegistered,
    LogEndAccepted,
    LossAccepted,
    OffsetRange,
    PartitionMoved,
    ProducerIdsAllocated,
    SlotRange,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Epoch, LeaderEpoch, ProducerId, Slot
from tidelog.wal.log.tenure import TenureEnd

KEY = "cluster/snapshot/00000000000000000009.json"


def eventful() -> ClusterState:
    """A state with all kinds of contents."""
    state = after(fenced(), 2, RETIRED)
    state = after(state, None, registered(1))
    state = after(state, 2, PartitionMoved(FLIGHTS, 0, Epoch(6), "handover/h"))
    end = TenureEnd(Slot(7), 12)
    state = after(state, 2, PartitionMoved(FLIGHTS, 1, Epoch(6), None, LeaderEpoch(0), end))
    overrides = {"message.max.bytes": "5"}
    state = after(state, 6, ConfigsChanged(ConfigScope.BROKER, "1", overrides))
    state = after(state, 6, ProducerIdsAllocated(ProducerId(0), 1000))
    return after(state, 2, BrokerFenced(Epoch(6)))


def rewritten(data: bytes, change: dict[str, Any]) -> bytes:
    members = json.loads(data) | change
    del members["crc32"]
    covered = json.dumps(members, separators=(",", ":")).encode()[:-1]
    return covered + b',"crc32":"%08x"}\n' % zlib.crc32(covered)


@pytest.mark.parametrize("state", [harbour(), fenced(), eventful()])
def test_a_snapshot_is_the_state(state: ClusterState) -> None:
    restored = decode_snapshot(KEY, encode_snapshot(state, 5))
    assert restored == state
    assert list(restored.topics) == list(state.topics)
    assert encode_snapshot(restored, 5) == encode_snapshot(state, 5)


def test_settings_of_a_group_are_kept() -> None:
    change = ConfigsChanged(ConfigScope.GROUP, "g", {"consumer.session.timeout.ms": "50000"})
    state = after(eventful(), 2, change)
    restored = decode_snapshot(KEY, encode_snapshot(state, 5))
    assert restored == state
    assert restored.configs(ConfigScope.GROUP, "g") == change.overrides


def test_a_snapshot_keeps_the_proof_of_the_log() -> None:
    lost = (SlotRange(Slot(3), Slot(4)), SlotRange(Slot(9), Slot(9)))
    fenced_at = after(harbour(), 2, BrokerFenced(Epoch(1), Slot(11)))
    for state in (fenced_at, after(fenced_at, 2, replace(RETIRED, damaged=lost))):
        known = replace(after(state, 2, TopicDeleted(DELAYS)), checksum=0xFEEDBEEF)
        restored = decode_snapshot(KEY, encode_snapshot(known, 5))
        assert restored == known
        assert restored.checksum == known.checksum
        assert restored.deleted == {DELAYS: known.sequence}


def test_a_snapshot_keeps_accepted_losses() -> None:
    loss = LossAccepted(FLIGHTS, 0, "handover/h", (OffsetRange(3, 8),), ("wal/1-1/5.wal",))
    state = after(after(harbour(), 1, loss), None, LogEndAccepted(EntryRange(5, 5)))
    assert decode_snapshot("k", encode_snapshot(state, 1)).losses == (loss,)
    assert decode_snapshot("k", encode_snapshot(state, 1)) == state


def test_a_snapshot_of_the_first_release_is_read() -> None:
    members = json.loads(encode_snapshot(fenced(), 5))
    del members["deleted"], members["checksum"]
    for broker in members["brokers"]:
        del broker["durable_end"]
    restored = decode_snapshot(KEY, rewritten(json.dumps(members).encode(), {"format": 2}))
    assert restored == fenced()
    assert restored.checksum is None


def test_only_a_snapshot_with_a_drained_broker_is_refused_by_releases_without_drains() -> None:
    state = after(harbour(), 1, DrainChanged(Epoch(2), draining=True))
    assert json.loads(encode_snapshot(state, 5))["format"] == 5
    restored = decode_snapshot(KEY, encode_snapshot(state, 5))
    assert restored == state
    assert [info.draining for info in restored.live_brokers()] == [False, True]
    ended = (DrainChanged(Epoch(2), draining=False), BrokerFenced(Epoch(2)))
    for record in ended:
        members = json.loads(encode_snapshot(after(state, 1, record), 5))
        assert members["format"] == 4
        assert "draining" not in members


def test_releases_without_listeners_refuse_only_a_snapshot_with_listeners() -> None:
    named = ListenersRegistered((Endpoint("A", "SSL", "b3.example", 9092),))
    state = after(harbour(), None, registered(3), named)
    assert json.loads(encode_snapshot(state, 5))["format"] == 7
    assert decode_snapshot(KEY, encode_snapshot(state, 5)) == state
    members = json.loads(encode_snapshot(after(state, 1, BrokerFenced(Epoch(2))), 5))
    assert members["format"] == 7


def test_the_object_of_the_users_is_named_in_a_snapshot_of_the_newest_format() -> None:
    state = after(harbour(), 1, CredentialsChanged("cluster/credentials/a.json"))
    assert json.loads(encode_snapshot(state, 5))["format"] == 7
    assert decode_snapshot(KEY, encode_snapshot(state, 5)) == state


def test_the_log_goes_on_from_a_snapshot_as_from_the_state() -> None:
    state = fenced()
    restored = decode_snapshot(KEY, encode_snapshot(state, 5))
    assert after(restored, 2, RETIRED) == after(state, 2, RETIRED)


def test_ten_thousand_partitions_take_little_room() -> None:
    wide = TopicCreated(UUID(int=1), "wide", (Epoch(1),) * 10_000)
    state = after(harbour(), 1, wide)
    data = encode_snapshot(state, 5)
    assert len(data) < 150_000
    assert decode_snapshot(KEY, data) == state


def test_before_entry_0_there_is_nothing_to_snapshot() -> None:
    with pytest.raises(ValueError, match="before entry 0"):
        encode_snapshot(ClusterState(), 5)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"magic": "tidelog.metadata.entry"}, "not a tidelog.metadata.snapshot"),
        ({"topics": None}, "its topics are not an array"),
        ({"topics": [{"name": "x"}]}, "a topic has no partitions"),
        ({"topics": [7]}, "a topic has no partitions"),
        ({"brokers": 7}, "brokers: 7 is not an array"),
        ({"sequence": None}, "sequence: None is not an integer"),
        ({"draining": [2, 9]}, "it drains brokers that are not live"),
        ({"listeners": [{"epoch": 9, "endpoints": []}]}, "listeners of brokers that are not"),
        ({"weather": "fine"}, "no field weather"),
    ],
)
def test_a_malformed_snapshot_is_named(change: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptObject, match=why) as caught:
        decode_snapshot(KEY, rewritten(encode_snapshot(harbour(), 5), change))
    assert caught.value.key == KEY


@pytest.mark.parametrize(
    ("tenures", "why"),
    [
        ([], "are not tenures"),
        (7, "are not tenures"),
        ([[0]], "is not a tenure"),
        ([[0, 1, 2]], "is not a tenure"),
        ([["0", 1]], "is not a tenure"),
        ([[0, 99]], "names epoch 99, which was never registered"),
    ],
)
def test_tenures_that_make_no_sense_are_named(tenures: Any, why: str) -> None:
    topic = {"topic_id": str(DELAYS), "name": "d", "internal": False, "configs": {}}
    broken = {"topics": [{**topic, "partitions": [tenures]}]}
    with pytest.raises(CorruptObject, match=why):
        decode_snapshot(KEY, rewritten(encode_snapshot(harbour(), 5), broken))


def test_a_newer_format_is_refused_with_both_versions() -> None:
    data = rewritten(encode_snapshot(harbour(), 5), {"format": 10})
    with pytest.raises(UnsupportedFormat, match=r"version 10.*up to version 9"):
        decode_snapshot(KEY, data)
