"""Adopts staged batches: the leader's part of the exactly-once sink (rules H7 to H9).

An adopt names staged objects. Their batches for a partition become part of a transaction, in order,
all or none. The steps, and the state if the broker dies there:

1. The broker looks at the objects: each exists, is young enough, and is staged for this
   transactional id. Then it reads and checks each batch of the partition like a produced one.
   Nothing has changed yet.
2. The broker asks the coordinator as for a first batch, unless the transaction has begun here. The
   partition may then be enlisted without data, which does no harm.
3. The broker leaves out the batches that the transaction has adopted already: an answer was lost,
   or a request came twice. It compares extents, so a successor finds the same answer. Only durable
   extents count. Therefore one adopt of a partition is under way at a time, until its slot is
   durable, even if its caller has gone. A leader that was superseded may still have the producer's
   transaction before open, which was aborted since: what that one adopted does not count.
4. The batches get their offsets and enter the open slot, as index entries only, all in one slot. So
   after a crash all are there or none, and step 3 need not look at single batches.
5. The slot is durable: the broker answers.

The coordinator refuses a caller that was fenced meanwhile in step 2, or the log refuses it in step
4: its transaction has been ended here, or has another ordinal.

Age: the broker refuses objects `staged.retention.ms` after they were put. The collector deletes
them after twice that time. So the collector and an adopt never meet, as long as the clocks of store
and broker agree to within the retention. The checked records stay valid: objects never change.
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
from tidelog.concurrency import read_all
from tidelog.coordinator.transaction.wire_errors import error_for
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicPartition
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
from tidelog.wal.read.read_plan import windows
from tidelog.wal.read.verify import verify_staged
from tidelog.wal.write.staging import read_staged_index
from tidelog.wal.write.writer import WalClosed, WalLost, WalWriter
from tidelog.workers.offload import Offload

OBJECTS_MAX = 10_000
"""Staged objects of one partition in a request."""
BATCHES_MAX = 50_000
"""Batches of one partition in a request: their entries go into one slot."""
ADOPTS_AT_ONCE_MAX = 4
"""Partitions whose staged batches are checked at a time."""
READS_AT_ONCE_MAX = 16
WINDOW_BYTES = 8 * 1024 * 1024
"""Staged batches that one adopt holds in memory at a time; one batch may be larger."""
_PRODUCE_VERSION = 12
"""The Produce version whose error codes carry a coordinator's refusals."""


class Adopted(NamedTuple):
    """Where the newly adopted records are; (-1, 0) if the transaction had all of them."""

    base_offset: int
    record_count: int


class AdoptFailed(NamedTuple):
    """Why the broker adopted nothing.

    After a timeout or the broker's end the batches may have been adopted.
    """

    code: ErrorCode
    message: str


AdoptResult: TypeAlias = Adopted | AdoptFailed


class _Unfit(Exception):
    """A staged object cannot be adopted, now or ever."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Adopter:
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
        """Partitions with an adopt that is under way, or appended and not durable yet."""

    async def adopt(
        self, partition: Partition, wanted: Wanted, staged_ids: Sequence[UUID]
    ) -> AdoptResult:
        """Adopt the partition's batches of these objects, in this order, into a transaction.

        `wanted` names the caller's transaction.
        """
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
            # No await from here until every batch is in the slot.
            self._partitions.require(partition)
            known = partition.log.adopted(*wanted.identity)
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
            # Shielded: a caller that asks again must wait until the slot is durable.
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
        # The caller may have gone: retrieve the error, so that the event loop does not log it.
        if not durable.cancelled():
            durable.exception()

    async def _admitted(self, partition: Partition, wanted: Wanted) -> int:
        """The transaction's ordinal; NO_ORDINAL if it has begun in this partition."""
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
        """The partition's batches, all fit for adoption. Raises _Unfit."""
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
                f"topic {partition.topic_name} uses log append time, but staged records carry"
                " their own timestamps: set message.timestamp.type to CreateTime",
            )

        async def look(staged_id: UUID) -> StagedIndex:
            return await self._read_index(staged_key(staged_id), wanted.transactional_id)

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

    async def _read_index(self, key: str, transactional_id: str) -> StagedIndex:
        """The object's index. Raises _Unfit if its age or purpose forbids an adopt."""
        try:
            age_ms = self._clock.time_ms() - (await self._store.head(key)).modified_ms
            index = await read_staged_index(self._store, key)
        except ObjectNotFound:
            raise _Unfit(
                ErrorCode.INVALID_RECORD,
                f"{key} is not there: it was never staged in this bucket, or is collected: stage"
                " it again",
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
        """Read every batch and check it like a produced one.

        Returns the checksums in the batch headers.
        """
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
    """Check that these bytes are the valid batches of the index; return their header checksums.

    Raises _Unfit.
    """
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
