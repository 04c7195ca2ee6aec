"""A broker that collects its WAL without pauses. `roll` sets the records that a table has."""

from __future__ import annotations

from uuid import UUID

from tests.unit.broker.one_broker import OneBroker, World
from tidelog.clock import SystemClock
from tidelog.identifiers import TopicPartition
from tidelog.records.records import decode_records
from tidelog.storage.stores.memory import MemoryStore


def world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), wal_linger_ms=0, **settings)


def roll(one: OneBroker, topic_id: UUID, partition: int, offset: int) -> None:
    """Tell the log that the table has all records below the offset."""
    hosted = one.broker.writes.partitions.find(TopicPartition(topic_id, partition))
    hosted.log.advance_table(offset)


async def values(one: OneBroker, partition: int = 0, *, start: int = 0) -> list[bytes | None]:
    """The values that a consumer reads from an offset on."""
    found: list[bytes | None] = []
    while True:
        answer = await one.fetch(start + len(found), partition)
        assert answer.error_code == 0, answer
        if not answer.records:
            return found
        found += [record.value for record in decode_records(b"".join(answer.records))]
