"""A partition leaves and comes back as another object, while a batch waits to be appended. The
batch is refused, and not acknowledged into a log without readers (C3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.append.test_data_path_edges import HeldChecks
from tests.unit.broker.one_broker import TOPIC, batch, run, until
from tests.unit.broker.ownership.given_away import taken_back
from tests.unit.broker.rolled import hosted
from tests.unit.broker.sink_world import Sink, world
from tests.unit.broker.transactional_client import read
from tidelog.broker.append.adopter import AdoptFailed, _check_window
from tidelog.broker.append.appender import INLINE_BYTES_MAX
from tidelog.broker.coordinate.internal_log import InternalPartition
from tidelog.broker.partitions.log_writer import EndedTransaction, LogWriter
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.identifiers import Offset
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import BatchHeader
from tidelog.records.records import NewRecord
from tidelog.wal.log.adoption import AdoptedBatch
from tidelog.wal.log.extents import Extent

LARGE = b"x" * INLINE_BYTES_MAX
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_batch_that_was_being_checked_is_refused_and_goes_to_the_log_that_is_read() -> None:
    here = world()
    here.offload = held = HeldChecks()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic()
            assert (await one.produce(batch(b"before"))).base_offset == 0
            place = hosted(one).log.partition
            waiting = asyncio.create_task(one.produce(batch(LARGE)))
            await until(lambda: one.broker.writes.appender._group)
            await taken_back(one, here.store, place)
            held.let_go.set()
            refused = await waiting
            assert (refused.error_code, refused.base_offset) == (NOT_LEADER, -1)
            assert (await one.produce(batch(LARGE))).base_offset == 1
            assert [record.offset for record in await one.read_all()] == [0, 1]
            log = hosted(one).log
            assert (log.leader_epoch, log.high_watermark) == (2, 2)
        async with here.broker() as one:
            assert [record.offset for record in await one.read_all()] == [0, 1]

    run(story)


Append = Callable[[LogWriter, Partition], object]
ADOPTED = AdoptedBatch(16, 0, 1000, 1000, 5, 0, 1, "staged/x", 0, 100, 7)
APPENDS: dict[str, Append] = {
    "batch": lambda writer, each: writer.append(
        each, batch(b"x"), BatchHeader.parse(batch(b"x")), 0
    ),
    "adopt": lambda writer, each: writer.adopt(each, [ADOPTED], 0, ordinal=1),
    "marker": lambda writer, each: writer.append_marker(each, EndedTransaction(5, 0, True, 1), 0),
    "log start": lambda writer, each: writer.begin_log_at(each, Offset(1)),
    "opening": lambda writer, each: writer.open(each),
    "relocation": lambda writer, each: writer.relocate(
        each, Extent(0, 0, 1000, "merged/x", 0, 100)
    ),
}


@pytest.mark.parametrize("what", APPENDS)
def test_a_log_that_was_given_away_refuses_appends(what: str) -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic()
            await one.produce(batch(b"a", b"b"))
            old = hosted(one)
            writer = one.broker.writes.appender._log_writer
            await taken_back(one, here.store, old.log.partition)
            newest, image = one.broker.writes.wal.newest_slot, old.log.image()
            with pytest.raises(PartitionError, match="led by another broker meanwhile") as refused:
                APPENDS[what](writer, old)
            assert refused.value.code is NOT_LEADER
            assert one.broker.writes.wal.newest_slot == newest
            assert old.log.image() is image
            # The new object accepts the batch.
            if what not in ("adopt", "relocation"):
                APPENDS[what](writer, hosted(one))
                assert one.broker.writes.wal.newest_slot > newest

    run(story)


def test_records_are_deleted_of_the_log_that_is_read_or_not_at_all() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic()
            await one.produce(batch(b"a", b"b"))
            old = hosted(one)
            new = await taken_back(one, here.store, old.log.partition)
            with pytest.raises(PartitionError):
                await one.broker.writes.appender.delete_records(old, Offset(1))
            assert new.log.log_start == 0
            assert await one.broker.writes.appender.delete_records(new, Offset(1)) == 1

    run(story)


def test_a_coordinator_writes_to_the_log_that_it_has_loaded_or_not_at_all() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic()
            old, broker = hosted(one), one.broker
            origin = SnapshotOrigin("cluster", TOPIC, *old.log.partition)
            log = InternalPartition(
                old,
                origin,
                broker.writes.wal,
                broker.writes.appender._log_writer,
                broker.reads.path.log,
            )
            log.append([NewRecord(b"v", b"k")], 0, None)
            await broker.writes.durable()
            new = await taken_back(one, here.store, old.log.partition)
            with pytest.raises(PartitionError):
                log.append([NewRecord(b"w", b"k")], 0, None)
            assert new.log.next_offset == 1

    run(story)


class HeldAdopts(HeldChecks):
    """Holds the checks of staged batches back."""

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is _check_window:
            self.asked = True
            await self.let_go.wait()
        return function(*args, **kwargs)

    asked = False


@pytest.mark.parametrize("was_adopted", [False, True])
def test_an_adopt_is_refused_even_if_the_departed_log_had_all_its_batches(
    was_adopted: bool,
) -> None:
    here = world()
    here.offload = held = HeldAdopts()
    held.let_go.set()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            staged, who, client = await Sink(here).adoptable(one)
            old = hosted(one)
            if was_adopted:
                assert (
                    await one.broker.coordination.adopter.adopt(old, who, [staged])
                ).record_count == 1
            held.asked = False
            held.let_go.clear()
            adopting = asyncio.create_task(
                one.broker.coordination.adopter.adopt(old, who, [staged])
            )
            await until(lambda: held.asked)
            new = await taken_back(one, here.store, old.log.partition)
            held.let_go.set()
            refused = await adopting
            assert isinstance(refused, AdoptFailed)
            assert refused.code is NOT_LEADER
            again = await one.broker.coordination.adopter.adopt(new, who, [staged])
            assert again.record_count == (0 if was_adopted else 1)
            assert await client.commit() is ErrorCode.NONE
            assert await read(one) == [b"a"]

    run(story)
