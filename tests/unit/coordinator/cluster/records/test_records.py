"""The metadata log's objects: their bytes, and the errors of damaged ones."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.coordinator.cluster.acls import rule
from tests.unit.coordinator.cluster.samples import (
    CLUSTER,
    DELAYS,
    FLIGHTS,
    RETIRED,
    WRITER,
    process,
    registered,
)
from tidelog.coordinator.cluster.records.client_quotas import QuotaEntity
from tidelog.coordinator.cluster.records.documents import checksum_of
from tidelog.coordinator.cluster.records.records import (
    RECORD_TYPES,
    AclsChanged,
    BrokerFenced,
    BrokerRegistered,
    ConfigsChanged,
    ConfigScope,
    CredentialsChanged,
    DrainChanged,
    Endpoint,
    EntryRange,
    IncarnationsForgotten,
    LeaseResumed,
    LevelRaised,
    ListenersRegistered,
    LogEndAccepted,
    LossAccepted,
    MetadataEntry,
    OffsetRange,
    OpenedTenures,
    PartitionMoved,
    PartitionsCreated,
    ProducerIdsAllocated,
    QuotasChanged,
    Record,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
    TopicsForgotten,
    decode_entry,
    encode_entry,
    identify_entry,
)
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import BrokerId, Epoch, LeaderEpoch, ProducerId, Slot
from tidelog.wal.log.tenure import TenureEnd

KEY = "cluster/log/00000000000000000042.json"

EVERY_RECORD: list[Record] = [
    CLUSTER,
    registered(1),
    ListenersRegistered((Endpoint("CLIENT", "SASL_SSL", "kafka.example", 9093),)),
    LeaseResumed(Epoch(1)),
    BrokerFenced(Epoch(1)),
    DrainChanged(Epoch(1), draining=True),
    LevelRaised(7),
    RETIRED,
    TopicCreated(FLIGHTS, "flights", (Epoch(1), Epoch(2)), {"retention.ms": "5"}, internal=True),
    PartitionsCreated(FLIGHTS, (Epoch(2),)),
    TopicDeleted(DELAYS),
    TopicsForgotten((DELAYS,)),
    IncarnationsForgotten((Epoch(1), Epoch(3))),
    ConfigsChanged(ConfigScope.CLUSTER, "", {"message.max.bytes": "1000", "größe": "ja"}),
    AclsChanged((rule("READ", "flights"), rule("ALL", "*", deny=True)), (rule("WRITE", "größe"),)),
    QuotasChanged(QuotaEntity("größe", ""), {"producer_byte_rate": 1e6, "x": 0.1}),
    CredentialsChanged("cluster/credentials/b.json", "cluster/credentials/a.json"),
    TenuresOpened((OpenedTenures(FLIGHTS, LeaderEpoch(3), (0, 2)),)),
    PartitionMoved(FLIGHTS, 1, Epoch(1), "handover/abc"),
    PartitionMoved(FLIGHTS, 1, Epoch(1), None, LeaderEpoch(0), TenureEnd(Slot(7), 12)),
    LossAccepted(FLIGHTS, 1, "handover/abc", (OffsetRange(5, 9),), ("wal/1-1/5.wal",)),
    LossAccepted(FLIGHTS, 1, None, (), ()),
    LogEndAccepted(EntryRange(7, 9)),
    ProducerIdsAllocated(ProducerId(2000), 1000),
]


def members_of(entry: MetadataEntry) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(encode_entry(entry))
    return members


def stored(members: dict[str, Any]) -> bytes:
    """An object with these members and a right checksum."""
    members = {name: value for name, value in members.items() if name != "crc32"}
    covered = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()[:-1]
    return covered + b',"crc32":"%08x"}\n' % zlib.crc32(covered)


def sample(*records: Record) -> MetadataEntry:
    return MetadataEntry(42, WRITER, 1_700_000_000_123, Epoch(7), records, previous=0x01234567)


def test_the_sample_holds_every_type_of_record() -> None:
    assert {type(record).__name__ for record in EVERY_RECORD} == RECORD_TYPES.keys()


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode_entry(KEY, encode_entry(sample(record))) == sample(record)


def test_the_form_of_an_entry_is_fixed() -> None:
    entry = sample(
        BrokerRegistered(BrokerId(3), "b3.example", 9092, process(8), rack="z1", version=2),
        PartitionMoved(FLIGHTS, 1, Epoch(2), None, LeaderEpoch(3), TenureEnd(Slot(7), 12)),
    )
    assert encode_entry(entry) == (
        b'{"magic":"tidelog.metadata.entry","format":4,"sequence":42,'
        b'"writer":"000102030405060708090a0b0c0d0e0f","time_ms":1700000000123,"author":7,'
        b'"previous":19088743,"records":[{"type":"BrokerRegistered","broker_id":3,"host":"b3.example","port":9092,'
        b'"process":{"host":"harbour","boot_id":"boot","pid_namespace":"pid:[1]","pid":8,'
        b'"start_time":5008},"session_timeout_ms":9000,"rack":"z1","version":2},{"type":"PartitionMoved",'
        b'"topic_id":"00000000-0000-4000-8000-00000000000a","partition":1,"owner":2,'
        b'"handover":null,"leader_epoch":3,"end":{"slot":7,"next_offset":12}}],"crc32":"'
        + encode_entry(entry)[-11:-3]
        + b'"}\n'
    )


def test_the_first_entry_can_be_read_by_every_release() -> None:
    first = replace(sample(CLUSTER), sequence=0, author=None, previous=None)
    assert members_of(first)["format"] == 1
    assert "previous" not in members_of(first)
    assert decode_entry(KEY, encode_entry(first)) == first


@pytest.mark.parametrize("version", [1, 2])
def test_entries_of_the_first_release_name_no_predecessor(version: int) -> None:
    entry = replace(sample(*EVERY_RECORD), previous=None)
    members = members_of(entry) | {"format": version}
    del members["previous"]
    assert decode_entry(KEY, stored(members)) == entry


def test_the_checksum_of_an_entry_is_the_one_that_it_ends_with() -> None:
    data = encode_entry(sample(CLUSTER))
    assert checksum_of(data) == int(members_of(sample(CLUSTER))["crc32"], 16)


def test_an_entry_may_be_read_from_any_kind_of_buffer() -> None:
    entry = sample(*EVERY_RECORD)
    assert decode_entry(KEY, memoryview(bytearray(encode_entry(entry)))) == entry


def test_the_writer_is_found_without_the_rest() -> None:
    assert identify_entry(encode_entry(sample(CLUSTER))) == WRITER


def test_every_altered_byte_is_noticed_and_the_object_named() -> None:
    data = encode_entry(sample(TopicDeleted(FLIGHTS)))
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 0x01
        with pytest.raises(CorruptObject, match=KEY):
            decode_entry(KEY, altered)


@pytest.mark.parametrize("length", [0, 1, 20, 100, -1])
def test_an_object_that_was_cut_off_is_named(length: int) -> None:
    with pytest.raises(CorruptObject, match=KEY):
        decode_entry(KEY, encode_entry(sample(CLUSTER))[:length])


def test_an_unknown_type_of_record_asks_for_a_newer_version() -> None:
    members = members_of(sample(CLUSTER))
    members["records"].append({"type": "AclCreated", "principal": "User:x"})
    with pytest.raises(UnsupportedFormat, match=f"{KEY}.*AclCreated.*newer Tidelog"):
        decode_entry(KEY, stored(members))


def test_a_newer_format_is_refused_with_both_versions() -> None:
    members = members_of(sample(CLUSTER)) | {"format": 5, "colour": "blue"}
    with pytest.raises(UnsupportedFormat, match=f"{KEY} has format version 5.* up to version 4"):
        decode_entry(KEY, stored(members))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"magic": "tidelog.lease"}, "is not a tidelog.metadata.entry"),
        ({"format": "1"}, "'1' is not a format version"),
        ({"format": 0}, "0 is not a format version"),
        ({"sequence": "42"}, "sequence: '42' is not an integer"),
        ({"sequence": True}, "sequence: True is not an integer"),
        ({"sequence": 2**63}, "does not fit into 64 bits"),
        ({"writer": "00"}, "'00' is not a writer id"),
        ({"author": "me"}, "author: 'me' is not an integer"),
        ({"colour": "blue"}, "no field colour"),
        ({"records": {}}, "its records are not an array"),
        ({"records": [7]}, "a record has no type"),
        ({"records": [{"epoch": 7}]}, "a record has no type"),
        ({"records": [{"type": "BrokerFenced"}]}, "BrokerFenced lacks epoch"),
        ({"records": [{"type": "BrokerFenced", "epoch": 1, "x": 2}]}, "has no field x"),
        (
            {"records": [{"type": "TopicDeleted", "topic_id": str(FLIGHTS).upper()}]},
            "topic_id: .* is not a UUID in its usual form",
        ),
        (
            {"records": [{"type": "TenuresOpened", "opened": [{"topic_id": "x"}]}]},
            "TenuresOpened.opened: OpenedTenures lacks leader_epoch, partitions",
        ),
        (
            {"records": [{"type": "ConfigsChanged", "scope": "x", "name": "", "overrides": {}}]},
            "scope: 'x' is no ConfigScope",
        ),
        (
            {
                "records": [
                    {
                        "type": "ConfigsChanged",
                        "scope": "broker",
                        "name": "1",
                        "overrides": {"a": 1},
                    }
                ]
            },
            "overrides: 1 is not a string",
        ),
    ],
)
def test_an_entry_that_no_writer_of_this_format_writes_is_corrupt(
    change: dict[str, Any], why: str
) -> None:
    with pytest.raises(CorruptObject, match=why) as caught:
        decode_entry(KEY, stored(members_of(sample(CLUSTER)) | change))
    assert caught.value.key == KEY


def test_a_member_that_is_missing_is_named() -> None:
    members = members_of(sample(CLUSTER))
    del members["time_ms"]
    with pytest.raises(CorruptObject, match="lacks time_ms"):
        decode_entry(KEY, stored(members))


def test_an_entry_from_before_a_field_existed_gets_its_default() -> None:
    members = members_of(sample(TopicCreated(FLIGHTS, "flights", (Epoch(1),))))
    del members["records"][0]["internal"]
    del members["records"][0]["configs"]
    assert decode_entry(KEY, stored(members)) == sample(
        TopicCreated(FLIGHTS, "flights", (Epoch(1),))
    )
