"""The partition log against a naive model, through slots, images and recovery."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.wal.batches import (
    assembled,
    batch,
    header,
    incarnation,
    marker,
    topic_partition,
)
from tests.properties.wal.naive_log import NaiveLog, Written
from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.wal.format.image_codec import Images, encode_images
from tidelog.wal.format.slot_index import SlotIndex, check_body
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_state import AppendRefused
from tidelog.wal.recover.recovery import rebuild
from tidelog.wal.recover.wal_reader import content_of
from tidelog.wal.write.buffer import AssembledSlot, SlotBuffer
from tidelog.wal.write.slot_entries import BatchEntry, LogStartEntry, MarkerEntry, OpeningEntry

PARTITION = topic_partition(0)
PRODUCERS = st.integers(1, 3)


class PartitionLogMachine(RuleBasedStateMachine):
    """Appends go into slots, which become durable in order. Now and then the whole log is
    recovered."""

    @initialize()
    def open(self) -> None:
        self.naive = NaiveLog()
        self.log = PartitionLog.from_image(PartitionImage.empty(PARTITION, LeaderEpoch(0)))
        self.slots: list[AssembledSlot] = []
        self.durable = 0
        self.table_next = 0
        self.log_start = 0
        self.buffer = SlotBuffer()
        self.buffer.add(OpeningEntry(self.log.image()))

    # Steps of producers and coordinators.

    @rule(records=st.integers(1, 4))
    def append_plain(self, records: int) -> None:
        data, head = batch(records)
        appended = self.log.append(head, 0)
        assert not appended.duplicate
        self.note(data, head, Written(self.naive.next_offset, appended.last_offset))

    @rule(
        producer=PRODUCERS,
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        sequence=st.sampled_from(["next", "next", "next", "repeat", "repeat", "zero", "skip"]),
        back=st.integers(1, 7),
        records=st.integers(1, 3),
        transactional=st.booleans(),
        ordinal_step=st.sampled_from([None, None, 0, 1, 1, -1]),
        version=st.sampled_from([0, 2]),
    )
    def append_idempotent(
        self,
        producer: int,
        epoch_step: int,
        sequence: str,
        back: int,
        records: int,
        transactional: bool,
        ordinal_step: int | None,
        version: int,
    ) -> None:
        naive = self.naive
        current = naive.epoch_of(producer)
        epoch = max(0, current + epoch_step)
        past = [w for w in naive.known(producer) if not w.marker and w.epoch == current]
        first = (past[-1].last_sequence + 1) if past else 0
        if sequence == "repeat" and len(past) >= back:
            first, records = past[-back].first_sequence, past[-back].last - past[-back].base + 1
        elif sequence == "zero":
            first = 0
        elif sequence == "skip":
            first += 2
        ordinal = NO_ORDINAL
        if ordinal_step is not None:
            ordinal = max(0, naive.decided_ordinal(producer) + ordinal_step)
        data, head = batch(
            records, producer=producer, epoch=epoch, sequence=first, transactional=transactional
        )
        last = head.last_sequence
        verdict = naive.judge_batch(producer, epoch, first, last, transactional, ordinal, version)
        if isinstance(verdict, int) and verdict:
            with pytest.raises(AppendRefused) as refused:
                self.log.append(head, 0, ordinal=ordinal, transaction_version=version)
            assert refused.value.error_code == verdict
            return
        appended = self.log.append(head, 0, ordinal=ordinal, transaction_version=version)
        if isinstance(verdict, Written):
            assert appended.duplicate
            assert appended.base_offset == verdict.base
            return
        opened = naive.open_transaction(producer)
        if not transactional:
            ordinal = NO_ORDINAL if ordinal_step is None else ordinal
        elif opened is not None:
            ordinal = opened.ordinal
        assert appended.ordinal == ordinal
        self.note(
            data,
            head,
            Written(
                naive.next_offset,
                appended.last_offset,
                producer,
                epoch,
                first,
                last,
                ordinal,
                transactional,
            ),
        )

    @rule(
        producer=PRODUCERS,
        commit=st.booleans(),
        epoch_step=st.sampled_from([0, 0, 0, 1, -1]),
        coordinator_epoch=st.sampled_from([3, 3, 3, 4, 2]),
        ordinal_step=st.sampled_from([None, 0, 0, 0, 1, -1]),
        version=st.sampled_from([0, 0, 2]),
    )
    def append_marker(
        self,
        producer: int,
        commit: bool,
        epoch_step: int,
        coordinator_epoch: int,
        ordinal_step: int | None,
        version: int,
    ) -> None:
        naive = self.naive
        epoch = max(0, naive.epoch_of(producer) + epoch_step)
        ordinal = NO_ORDINAL
        if ordinal_step is not None:
            ordinal = max(0, naive.decided_ordinal(producer) + ordinal_step)
        verdict = naive.judge_marker(producer, epoch, coordinator_epoch, ordinal, version)

        def append() -> int | None:
            appended = self.log.append_marker(
                producer,
                epoch,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                ordinal=ordinal,
                now_ms=0,
                transaction_version=version,
            )
            return None if appended.duplicate else appended.ordinal

        if verdict:
            with pytest.raises(AppendRefused) as refused:
                append()
            assert refused.value.error_code == verdict
            return
        noted = append()
        if verdict is None:
            assert noted is None
            return
        assert noted is not None
        opened = naive.open_transaction(producer)
        assert noted == (
            opened.ordinal if opened is not None and ordinal == NO_ORDINAL else ordinal
        )
        offset = naive.next_offset
        data, head = marker(producer, epoch)
        self.buffer.add(
            MarkerEntry(
                PARTITION,
                self.log.leader_epoch,
                data,
                head,
                offset,
                ordinal=noted,
                commit=commit,
                coordinator_epoch=coordinator_epoch,
            )
        )
        naive.written.append(
            Written(
                offset,
                offset,
                producer,
                epoch,
                ordinal=noted,
                marker="commit" if commit else "abort",
                coordinator_epoch=coordinator_epoch,
            )
        )

    def note(self, data: bytes, head: object, written: Written) -> None:
        """An appended entry goes into the slot being filled, and into the model's list."""
        self.buffer.add(
            BatchEntry(
                PARTITION,
                self.log.leader_epoch,
                data,
                head,  # type: ignore[arg-type]
                written.base,
                written.ordinal,
            )
        )
        self.naive.written.append(written)

    # Steps of the WAL.

    @rule()
    def close_slot(self) -> None:
        if self.buffer.is_empty:
            return
        previous = self.slots[-1].crc if self.slots else 0
        self.slots.append(assembled(self.buffer, header(len(self.slots), previous)))
        self.buffer = SlotBuffer()

    @precondition(lambda self: self.durable < len(self.slots))
    @rule()
    def slot_is_durable(self) -> None:
        for advance in self.slots[self.durable].advances:
            self.log.advance(advance)
        self.durable += 1

    @rule(back=st.integers(-1, 3))
    def delete_records(self, back: int) -> None:
        offset = self.log.high_watermark - back
        if not 0 <= offset <= self.log.high_watermark:
            with pytest.raises(AppendRefused) as refused:
                self.log.set_log_start(offset)
            assert refused.value.error_code == 1
        elif self.log.set_log_start(offset):
            self.buffer.add(LogStartEntry(PARTITION, self.log.leader_epoch, offset))

    @rule(back=st.integers(0, 3))
    def roll(self, back: int) -> None:
        self.table_next = max(self.table_next, self.log.last_stable_offset - back)
        self.log.advance_table(self.table_next)

    def settle(self) -> None:
        """Make all slots durable."""
        self.close_slot()
        while self.durable < len(self.slots):
            self.slot_is_durable()

    @rule()
    def expire(self) -> None:
        expected = {
            producer
            for producer in {w.producer for w in self.naive.written if w.producer > 0}
            if self.naive.known(producer) and self.naive.open_transaction(producer) is None
        }
        self.settle()
        assert self.log.expire_producers(now_ms=10, expiration_ms=10) == len(expected)
        for producer in expected:
            self.naive.forgotten[producer] = len(self.naive.written)
        # The WAL does not record that producers are forgotten, but an image does.
        self.begin_tenure(1)

    @rule(step=st.integers(1, 3))
    def begin_tenure(self, step: int) -> None:
        """A new owner begins a tenure in its own WAL, with the image as it is stored and read
        again."""
        self.settle()
        stored = encode_images([self.log.image()])
        self.log = PartitionLog.from_image(Images("image", stored).image(0))
        self.log.begin_tenure(LeaderEpoch(self.log.leader_epoch + step))
        self.slots, self.durable, self.buffer = [], 0, SlotBuffer()
        self.buffer.add(OpeningEntry(self.log.image()))

    @rule()
    def recover(self) -> None:
        """A log that is rebuilt from the slots alone equals the owner's in memory."""
        self.settle()
        found: list[SlotIndex | CorruptObject] = [
            check_body(slot.key, slot.data) for slot in self.slots
        ]
        content = content_of(incarnation(), None, Slot(0), found)
        tenure = (PARTITION, self.log.leader_epoch)
        rebuilt = rebuild(content, [tenure])[tenure]
        assert isinstance(rebuilt, PartitionImage)
        recovered = PartitionLog.from_image(rebuilt)
        recovered.advance_table(self.table_next)
        assert recovered.image() == self.log.image()
        assert recovered.last_stable_offset == self.log.last_stable_offset
        self.log = recovered

    # Invariants.

    @invariant()
    def answers_agree(self) -> None:
        naive, log = self.naive, self.log
        assert log.next_offset == naive.next_offset
        held_from = max(log.table_next, log.log_start)
        assert log.last_stable_offset == naive.last_stable_offset(log.high_watermark, held_from)
        assert held_from <= log.last_stable_offset <= log.high_watermark <= log.next_offset
        if held_from < log.high_watermark:
            for offset in range(held_from, log.high_watermark):
                extent = log.extents.find(offset)
                assert extent is not None
                assert extent.base_offset <= offset <= extent.last_offset

    @invariant()
    def aborted_agree(self) -> None:
        log = self.log
        every = [a for a in self.naive.aborted() if a[2] >= log.table_next]
        upper = log.last_stable_offset
        for start in {log.table_next, (log.table_next + upper) // 2}:
            found = [(a[0], a[1], a[2]) for a in log.aborted_between(start, upper)]
            assert found == [a for a in every if a[2] >= start and a[1] < upper]


TestPartitionLog = PartitionLogMachine.TestCase
