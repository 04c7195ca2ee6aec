"""Every client, unmodified, reads the records of all others and of itself."""

from __future__ import annotations

import pytest

from tests.compat.kit.clients import Client, Confluent
from tests.compat.kit.records import CODECS, PARTITIONS, Record, by_partition, sample
from tidelog.localstack.broker_process import BrokerProcess

CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "java", "kafkajs", "kcat")

pytestmark = pytest.mark.compat


def assert_same_records(sent: list[Record], seen: list[Record]) -> None:
    """Each partition holds exactly the records sent to it, in order, at consecutive offsets."""
    expected, found = by_partition(sent), by_partition(seen)
    assert found.keys() == expected.keys()
    for partition, records in expected.items():
        assert [r.offset for r in found[partition]] == list(range(len(records)))
        for one, other in zip(records, found[partition], strict=True):
            assert (other.key, other.value) == (one.key, one.value)
            assert other.headers == one.headers


def records_for(client: Client, codec: str) -> list[Record]:
    """The records that the client can produce. kcat takes a file a record, and neither a null value
    nor an empty file or key."""
    if client.name != "kcat":
        return sample()
    return [r for r in sample() if r.value and r.key != b""][: 6 * PARTITIONS]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_records_of_a_client_are_read_as_sent(
    broker: BrokerProcess, topic: str, client: Client, codec: str
) -> None:
    sent = records_for(client, codec)
    offsets = client.produce(broker.kafka, topic, codec, sent)
    seen = Confluent().consume(broker.kafka, topic, PARTITIONS, len(sent))
    assert_same_records(sent, seen)
    if offsets:
        for records in by_partition(
            [Record(r.partition, r.key, r.value, (), o) for r, o in zip(sent, offsets, strict=True)]
        ).values():
            assert [r.offset for r in records] == list(range(len(records)))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_a_client_reads_records_of_others_as_sent(
    broker: BrokerProcess, topic: str, client: Client, codec: str
) -> None:
    sent = sample()
    Confluent().produce(broker.kafka, topic, codec, sent)
    seen = client.consume(broker.kafka, topic, PARTITIONS, len(sent))
    assert_same_records(sent, seen)
