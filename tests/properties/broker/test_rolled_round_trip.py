"""A whole broker: consumers get all committed records after they were rolled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.records.batches import new_records
from tests.unit.broker.one_broker import OneBroker, World, run
from tests.unit.broker.rolled import flush
from tests.unit.broker.transactional_client import TransactionalClient, find, loaded
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import iterate_batches
from tidelog.records.compression import Compression
from tidelog.records.records import NewRecord, Record, decode_records, encode_batch
from tidelog.storage.stores.memory import MemoryStore

SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
PRODUCERS = 2
NONE = -1
"""The producer outside transactions."""

STAMP = 1_700_000_000_000


def repeated(few: list[NewRecord], times: int) -> list[NewRecord]:
    """Up to 500 records, within the size of a batch."""
    size = sum(len(record.key or b"") + len(record.value or b"") for record in few)
    return (few * times)[:500] if size < 1000 else few


record_lists = st.builds(
    repeated,
    st.lists(new_records(st.integers(STAMP, STAMP + 1000)), min_size=1, max_size=4),
    st.sampled_from([1, 1, 3, 500]),
)


@dataclass(frozen=True)
class Send:
    producer: int
    records: list[NewRecord]
    codec: Compression


@dataclass(frozen=True)
class End:
    producer: int
    commits: bool


@dataclass(frozen=True)
class Roll:
    pass


steps = st.lists(
    st.one_of(
        st.builds(
            Send,
            producer=st.sampled_from([NONE, 0, 1]),
            records=record_lists,
            codec=st.sampled_from(Compression),
        ),
        st.builds(End, producer=st.integers(0, PRODUCERS - 1), commits=st.booleans()),
        st.just(Roll()),
    ),
    max_size=10,
)


@dataclass
class Story:
    """The broker, and the records that it should hold."""

    one: OneBroker
    producers: list[TransactionalClient]
    committed: dict[int, NewRecord] = field(default_factory=dict)
    pending: dict[int, dict[int, NewRecord]] = field(default_factory=dict)
    next_offset: int = 0

    async def send(self, step: Send) -> None:
        at = dict(enumerate(step.records, self.next_offset))
        if step.producer == NONE:
            answer = await self.one.produce(encode_batch(step.records, compression=step.codec))
            assert (answer.error_code, answer.base_offset) == (0, self.next_offset)
            self.committed |= at
        else:
            producer = self.producers[step.producer]
            code = await producer.send_batch(step.records, compression=step.codec)
            assert code is ErrorCode.NONE
            self.pending.setdefault(step.producer, {}).update(at)
        self.next_offset += len(step.records)

    async def end(self, step: End) -> None:
        if step.producer not in self.pending:
            return
        assert await self.producers[step.producer].end(commit=step.commits) is ErrorCode.NONE
        while (
            self.one.broker.writes.partitions.named("flights", 0).log.next_offset
            == self.next_offset
        ):
            await self.one.broker.environment.clock.sleep(0.001)
        records = self.pending.pop(step.producer)
        if step.commits:
            self.committed |= records
        self.next_offset += 1

    async def read(self, *, committed: bool) -> list[Record]:
        """Read as a client does, up to the last stable offset (KIP-98)."""
        found: list[Record] = []
        end = (await self.one.offsets(-1, committed=committed)).offset
        position, ignored = 0, set[int]()
        while position < end:
            answer = await self.one.fetch(position, bytes_max=100_000, committed=committed)
            assert answer.error_code == 0, answer
            data = b"".join(answer.records or ())
            pending = sorted(
                (a.first_offset, a.producer_id) for a in answer.aborted_transactions or ()
            )
            before = position
            for start, header in iterate_batches(data):
                while pending and pending[0][0] <= header.last_offset:
                    ignored.add(pending.pop(0)[1])
                if header.is_control:
                    ignored.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in ignored):
                    records = decode_records(data[start : start + header.size_bytes])
                    found += [each for each in records if each.offset >= before]
                position = max(position, header.last_offset + 1)
            assert position > before, answer
        return found


def contents(record: Record | NewRecord, *, dated: bool) -> tuple[Any, ...]:
    stamp = record.timestamp if dated else None
    return record.key, record.value, tuple(map(tuple, record.headers)), stamp


@settings(max_examples=settings().max_examples // 3)
@given(steps=steps, by_broker=st.booleans(), codec=st.sampled_from(["producer", "lz4"]))
def test_committed_records_read_the_same_before_and_after_a_roll(
    steps: list[Send | End | Roll], by_broker: bool, codec: str
) -> None:
    async def story() -> None:
        async with World(MemoryStore(SystemClock()), **SETTINGS).broker() as one:
            stamps = "LogAppendTime" if by_broker else "CreateTime"
            await one.create_topic(
                message_timestamp_type=stamps,
                compression_type=codec,
                retention_ms="-1",
                max_message_bytes=str(1 << 26),
            )
            await find(one, "t0", 1)
            await loaded(one)
            producers = [TransactionalClient(one, f"t{number}") for number in range(PRODUCERS)]
            for producer in producers:
                assert await producer.init() is ErrorCode.NONE
            told = Story(one, producers)
            for step in steps:
                match step:
                    case Send():
                        await told.send(step)
                    case End():
                        await told.end(step)
                    case Roll():
                        await flush(one)
            for producer in list(told.pending):
                await told.end(End(producer, commits=False))
            before = await told.read(committed=True)
            assert [(each.offset, *contents(each, dated=not by_broker)) for each in before] == [
                (offset, *contents(record, dated=not by_broker))
                for offset, record in sorted(told.committed.items())
            ]
            await flush(one)
            log = one.broker.writes.partitions.named("flights", 0).log
            assert log.table_next == log.high_watermark == told.next_offset
            assert await told.read(committed=True) == before
            assert await told.read(committed=False) == before

    run(story)
