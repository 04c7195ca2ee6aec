"""Adopts staged batches: the leader's part of the exactly-once sink (rules H7 to H9).

An adopt names staged objects; their batches for a partition become part of a transaction, in order,
all of them or none. Step by step, and what is left if the broker dies there:

1. The objects are looked at: there, young enough, staged for this transactional id; then each batch
   of the partition is read and checked like a produced one. Nothing has happened yet.
2. The coordinator is asked, unless the transaction has begun here, as for a first batch. The
   partition may be enlisted then without data, which does no harm.
3. What the transaction has adopted already is left out: an answer was lost, or a request came
   twice. That is told by the extents, so a successor knows it too. They are what is durable;
   therefore one adopt of a partition is under way at a time, until its slot is durable, whatever
   becomes of who asked.
4. The batches get their offsets and go into the slot being filled, as index entries only: all in
   one slot. So after a crash all are there or none, and step 3 need not look at single batches.
5. The slot is durable: answered.

A caller that was fenced meanwhile is refused in step 2 by its coordinator, or in step 4 by the
log: its transaction has been ended here, or has another ordinal.

Age: objects are refused `staged.retention.ms` after they were put and deleted after twice that, so
the collector and an adopt never meet, as long as the clocks of store and broker agree to
within the retention. The records count as they were checked: objects never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidelog.broker.coordinate.transaction_admission import Admissions, Wanted
from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import Partition, PartitionError, PartitionRegistry
from tidelog.clock import Clock
from tidelog.coordinator.transaction.wire_errors import error_for
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicPartition
from tidelog.offload import Offload
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import TRANSACTIONAL_FLAG, TimestampType
from tidelog.records.buffers import Buffer
from tidelog.records.validate.rules import BatchLimits, InvalidBatch
from tidelog.records.validate.validation import validate
from tidelog.storage.object_store import ByteRange, ObjectNotFound, ObjectStore, StoreError
from tidelog.wal.format.staged_format import StagedBatch, StagedIndex
from tidelog.wal.log.adoption import AdoptedBatch, staged_key
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.producer_state import AppendRefused
from tidelog.wal.read.reading import read_all, windows
from tidelog.wal.read.verify import verify_staged
from tidelog.wal.write.staging import read_staged_index
from tidelog.wal.write.writer import WalClosed, WalLost, WalWriter

OBJECTS_MAX = 10_000
"""Of one partition in a request."""
BATCHES_MAX = 50_000
"""Of one partition in a request: their entries go into one slot."""
ADOPTS_AT_ONCE_MAX = 4
"""Partitions whose staged batches are checked at a time."""
READS_AT_ONCE_MAX = 16
WINDOW_BYTES = 8 * 1024 * 1024
"""Of staged batches that one adopt has in memory at a time; one batch may be larger."""
_PRODUCE_VERSION = 12
"""As whose answers a coordinator's refusals are given."""


class Adopted(NamedTuple):
    """Where the records are that this adopt added; (-1, 0): the transaction had all of them."""

    base_offset: int
    record_count: int


class AdoptFailed(NamedTuple):
    """Why nothing was adopted; a request that timed out or met the broker's end may have been."""

    code: ErrorCode
    message: str


AdoptResult: TypeAlias = Adopted | AdoptFailed


class _Unfit(Exception):
    """A staged object cannot be adopted, now or ever."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Adopter:
    """One broker's adopts."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        offload: Offload,
        wal: WalWriter,
        log_writer: LogWriter,
        partitions: PartitionRegistry,
        admissions: Admissions,
        retention_ms: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self._wal = wal
        self._log_writer = log_writer
        self._partitions = partitions
        self._admissions = admissions
        self._retention_ms = retention_ms
        self._at_once = asyncio.Semaphore(ADOPTS_AT_ONCE_MAX)
        self._reads = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._busy: set[TopicPartition] = set()
        """Partitions with an adopt under way, or appended and not durable yet."""

    async def adopt(
        self, partition: Partition, wanted: Wanted, staged_ids: Sequence[UUID]
    ) -> AdoptResult:
        """Adopt the partition's batches of these objects, in this order, as part of the caller's
        transaction. `wanted`: whose that is."""
        place = partition.log.partition
        if place in self._busy:
            return AdoptFailed(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"another adopt in {partition} is under way; ask again",
            )
        self._busy.add(place)
        is_appended = False
        try:
            async with self._at_once:
                batches = await self._checked(partition, wanted, staged_ids)
            ordinal = await self._admitted(partition, wanted)
            await self._wal.wait_for_room()
            # From here on nothing waits until all is in the slot.
            self._partitions.require(partition)
            known = partition.log.adopted(wanted.identity.producer_id)
            fresh = [batch for batch in batches if batch.key not in known]
            if not fresh:
                return Adopted(-1, 0)
            placed = self._log_writer.adopt(
                partition,
                fresh,
                self._clock.time_ms(),
                ordinal=ordinal,
                transaction_version=wanted.transaction_version,
            )
            durable = self._wal.durable(placed.slot)
            is_appended = True
            durable.add_done_callback(partial(self._is_durable, place))
            # Shielded: until it is durable, whoever asks again must wait.
            await asyncio.shield(durable)
        except _Unfit as unfit:
            return AdoptFailed(unfit.code, f"{unfit}; nothing was adopted")
        except PartitionError as error:
            return AdoptFailed(error.code, str(error))
        except AppendRefused as error:
            return AdoptFailed(ErrorCode(error.error_code), str(error))
        except StoreError as error:
            return AdoptFailed(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}; nothing was adopted")
        except (WalLost, WalClosed) as error:
            return AdoptFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
        finally:
            if not is_appended:
                self._busy.discard(place)
        return Adopted(placed.appended.base_offset, sum(each.record_count for each in fresh))

    def _is_durable(self, place: TopicPartition, durable: asyncio.Future[None]) -> None:
        self._busy.discard(place)
        # Whoever asked may have gone; that the WAL was lost is then no error of the event loop's.
        if not durable.cancelled():
            durable.exception()

    async def _admitted(self, partition: Partition, wanted: Wanted) -> int:
        """The transaction's ordinal; NO_ORDINAL where it has begun in this partition."""
        if partition.log.is_in_transaction(*wanted.identity):
            return NO_ORDINAL
        admission = (await self._admissions.admit(wanted, [partition]))[partition]
        if admission.error is not ErrorCode.NONE:
            code = error_for(ApiKey.PRODUCE, _PRODUCE_VERSION, admission.error)
            why = f"the transaction's coordinator answers {admission.error.name}"
            raise _Unfit(code, why)
        return admission.ordinal

    async def _checked(
        self, partition: Partition, wanted: Wanted, staged_ids: Sequence[UUID]
    ) -> list[AdoptedBatch]:
        """The batches, each of which may be adopted."""
        if not staged_ids or len(set(staged_ids)) != len(staged_ids):
            raise _Unfit(ErrorCode.INVALID_REQUEST, "no staged object is named, or one twice")
        if len(staged_ids) > OBJECTS_MAX:
            raise _Unfit(
                ErrorCode.INVALID_REQUEST,
                f"{len(staged_ids)} staged objects for {partition}; the limit is {OBJECTS_MAX}:"
                " stage more in each, or commit smaller batches",
            )
        if partition.limits.timestamp_type is not TimestampType.CREATE_TIME:
            raise _Unfit(
                ErrorCode.INVALID_REQUEST,
                f"topic {partition.topic_name} dates its records itself, staged ones are dated:"
                " set message.timestamp.type to CreateTime",
            )

        async def look(staged_id: UUID) -> StagedIndex:
            return await self._look(staged_key(staged_id), wanted.transactional_id)

        found = await read_all(look, staged_ids, self._reads)
        place = partition.log.partition
        adopted: list[AdoptedBatch] = []
        for index in found:
            batches = index.partitions.get(place)
            if batches is None:
                raise _Unfit(
                    ErrorCode.INVALID_RECORD, f"{index.key} has nothing staged for {partition}"
                )
            if len(adopted) + len(batches) > BATCHES_MAX:
                raise _Unfit(
                    ErrorCode.INVALID_REQUEST,
                    f"more than {BATCHES_MAX} staged batches for {partition}: commit smaller"
                    " batches",
                )
            crcs = await self._check_records(index.key, batches, partition.limits)
            adopted += [
                _adopted(index.key, batch, crc, wanted)
                for batch, crc in zip(batches, crcs, strict=True)
            ]
        return adopted

    async def _look(self, key: str, transactional_id: str) -> StagedIndex:
        """The object's index, if it may be adopted at all."""
        try:
            age_ms = self._clock.time_ms() - (await self._store.head(key)).modified_ms
            index = await read_staged_index(self._store, key)
        except ObjectNotFound:
            raise _Unfit(
                ErrorCode.INVALID_RECORD,
                f"{key} is not there: it was never staged, or is collected: stage it again",
            ) from None
        except (CorruptObject, UnsupportedFormat) as error:
            raise _Unfit(ErrorCode.INVALID_RECORD, f"{error}: stage it again") from error
        if age_ms > self._retention_ms:
            raise _Unfit(
                ErrorCode.INVALID_TIMESTAMP,
                f"{key} was staged {age_ms} ms ago, longer than staged.retention.ms"
                f" ({self._retention_ms}): stage it again",
            )
        if index.purpose.transactional_id != transactional_id:
            raise _Unfit(
                ErrorCode.INVALID_RECORD,
                f"{key} was staged for {index.purpose.transactional_id!r}, not for"
                f" {transactional_id!r}",
            )
        return index

    async def _check_records(
        self, key: str, batches: Sequence[StagedBatch], limits: BatchLimits
    ) -> list[int]:
        """Read every batch and check it like a produced one; the checksums in their headers."""
        crcs: list[int] = []
        rules = replace(limits, compression=None, batches_max=1, zstd_allowed=True)
        for window in windows(batches, WINDOW_BYTES):
            begin, end = window[0].position, window[-1].position + window[-1].length
            async with self._reads:
                data = (await self._store.get(key, ByteRange(begin, end - begin))).data
            crcs += await self._offload.run(
                _check_window, key, window, data, rules, self._clock.time_ms()
            )
        return crcs


def _check_window(
    key: str, window: Sequence[StagedBatch], data: Buffer, limits: BatchLimits, now_ms: int
) -> list[int]:
    """Whether these bytes are the batches that the index says, and good ones; the checksums in
    their headers. Raises _Unfit."""
    crcs: list[int] = []
    view = memoryview(data)
    begin = window[0].position
    bodies = [view[each.position - begin :][: each.length] for each in window]
    for batch, body in zip(window, bodies, strict=True):
        extent = Extent(
            0, batch.last_offset_delta, batch.max_timestamp, key, batch.position, batch.length
        )
        try:
            header = verify_staged(extent, body)
        except CorruptObject as error:
            raise _Unfit(ErrorCode.INVALID_RECORD, f"{error}: stage it again") from error
        crcs.append(header.crc)
        said = (batch.record_count, batch.attributes, batch.base_timestamp)
        if (header.record_count, header.attributes, header.base_timestamp) != said:
            raise _Unfit(
                ErrorCode.INVALID_RECORD,
                f"the batch at position {batch.position} of {key} is not the one in its index",
            )
    for batch, verdict in zip(
        window, validate(bodies, [limits] * len(bodies), now_ms), strict=True
    ):
        where = f"the batch at position {batch.position} of {key}"
        if isinstance(verdict, InvalidBatch):
            raise _Unfit(ErrorCode(verdict.error_code), f"{where}: {verdict.message}")
        if any(info.needs_rewrite for info in verdict):
            raise _Unfit(ErrorCode.INVALID_RECORD, f"{where} has another maximum timestamp")
    return crcs


def _adopted(key: str, batch: StagedBatch, crc: int, wanted: Wanted) -> AdoptedBatch:
    producer_id, producer_epoch = wanted.identity
    return AdoptedBatch(
        batch.attributes | TRANSACTIONAL_FLAG,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        producer_id,
        producer_epoch,
        batch.record_count,
        key,
        batch.position,
        batch.length,
        crc,
    )
