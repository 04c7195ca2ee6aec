"""A partition is given to another broker and taken back, by the steps of rule C3."""

from __future__ import annotations

from tests.unit.broker.one_broker import OneBroker, until
from tidelog.broker.partitions.partitions import Partition
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    PartitionMoved,
)
from tidelog.identifiers import BrokerId, Epoch, TopicPartition
from tidelog.storage.object_store import IfAbsent, ObjectStore
from tidelog.wal.format.image_codec import encode_images

OTHER = BrokerRegistered(
    BrokerId(9), "127.0.0.1", 9, ProcessIdentity("elsewhere", "boot", "namespace", 9, 9)
)


async def taken_back(one: OneBroker, store: ObjectStore, place: TopicPartition) -> Partition:
    """Give the partition to another broker and take it back. All of it was durable."""
    broker = one.broker
    log, mine = broker.writes.partitions.find(place).log, broker.membership.incarnation.epoch
    assert log.high_watermark == log.next_offset
    other = Epoch(await broker.membership.metadata.append(None, lambda _: (OTHER,)))
    image = log.image()
    broker.writes.partitions.suspend(broker.writes.partitions.find(place))
    for number, (author, owner) in enumerate([(mine, other), (other, mine)]):
        key = f"handover/{place.topic_id}-{place.partition}-{other}-{number}"
        await store.put(key, encode_images([image]), IfAbsent())
        moved = PartitionMoved(place.topic_id, place.partition, owner, key)
        await broker.membership.metadata.append(author, lambda _, moved=moved: (moved,))  # type: ignore[misc]
        assert broker.writes.partitions.get(place) is None
    await broker.membership.metadata.append(mine, lambda _: (BrokerFenced(other),))
    await until(lambda: broker.writes.partitions.get(place) is not None)
    return broker.writes.partitions.find(place)
