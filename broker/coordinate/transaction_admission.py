"""Whether a partition may take a producer's transactional batches: its coordinator says so.

The first batch of a transaction in a partition is admitted when the coordinator has the partition
in the producer's ongoing transaction (KIP-890): because the producer had it added (first version:
the coordinator is asked to verify that), or by this very request (second version: it is asked to
add it). What admits the batch is the transaction's ordinal (rule H1), which serves as the guard: by
the time the batch is appended the transaction may have been decided, and then the log refuses it.

The coordinator of this broker answers at once: its addition lies ahead of the batch in the same
WAL, so that the batch does not survive without it (H2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import Clock
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    AddReply,
    Command,
    Identity,
    Release,
    Reply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.transaction import OWN_EPOCHS_FROM, EnlistedPartition
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from tidelog.records.buffers import Buffer
from tidelog.wal.log.entries import NO_ORDINAL

RETRY_SECONDS: Final = 0.02
ATTEMPTS_MAX: Final = 6
"""How often a coordinator is asked that is still ending the transaction before; the times are
Kafka's."""


class Admission(NamedTuple):
    """The coordinator's word on a partition: the transaction's ordinal, or why not."""

    error: ErrorCode
    ordinal: int = NO_ORDINAL


class Wanted(NamedTuple):
    """On whose behalf a coordinator is asked."""

    transactional_id: str
    identity: Identity
    transaction_version: int
    """The `transaction.version` that the producer speaks."""

    @property
    def adds(self) -> bool:
        """Whether the partitions are to be added; else the producer has had that done."""
        return self.transaction_version >= OWN_EPOCHS_FROM


def transactional_identity(records: Buffer) -> Identity | None:
    """Who sent a transactional batch; None for any other, also for one that is malformed, which
    will be refused for that."""
    if len(records) < HEADER_SIZE or not records[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_FLAG:
        return None
    header = BatchHeader.parse(records)
    return Identity(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))


class Admissions:
    """One broker's way to ask coordinators."""

    def __init__(self, coordinators: Coordinators, clock: Clock) -> None:
        self._coordinators = coordinators
        self._clock = clock

    def admit_at_once(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission] | None:
        """Each partition's admission; None if it has to be waited for: then use `admit`."""
        try:
            answer = self.ask(wanted, partitions)
            if not answer.done():
                return None
            # A coordinator whose lease is not fresh refuses after it has taken the command.
            admissions = admissions_of(answer.result(), partitions)
        except CoordinatorRefused as error:
            return dict.fromkeys(partitions, Admission(error.code))
        return None if _may_be_later(wanted, admissions) else admissions

    async def admit(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission]:
        """Each partition's admission, when the coordinator can say; a transaction that is about to
        end is waited for, for a while."""
        for remaining in reversed(range(ATTEMPTS_MAX)):
            try:
                admissions = admissions_of(await self.ask(wanted, partitions), partitions)
            except CoordinatorRefused as error:
                return dict.fromkeys(partitions, Admission(error.code))
            if not (remaining and _may_be_later(wanted, admissions)):
                break
            await self._clock.sleep(RETRY_SECONDS)
        return admissions

    def ask(self, wanted: Wanted, partitions: Sequence[Partition]) -> asyncio.Future[Reply]:
        """Ask the coordinator to add or to verify the partitions. Raises CoordinatorRefused."""
        enlisted = frozenset(map(_enlisted, partitions))
        command: Command
        if wanted.adds:
            command = AddPartitions(
                transactional_id=wanted.transactional_id,
                identity=wanted.identity,
                partitions=enlisted,
                client_version=wanted.transaction_version,
                release=Release.APPENDED,
            )
        else:
            command = VerifyPartitions(
                transactional_id=wanted.transactional_id,
                identity=wanted.identity,
                partitions=enlisted,
                release=Release.APPENDED,
            )
        return self._coordinators.transactions.find(wanted.transactional_id).submit(command)


def _enlisted(partition: Partition) -> EnlistedPartition:
    return EnlistedPartition(partition.topic_name, partition.log.partition.partition)


def admissions_of(reply: Reply, partitions: Sequence[Partition]) -> Mapping[Partition, Admission]:
    """What a coordinator's reply says of each partition."""
    assert isinstance(reply, AddReply | VerifyReply)
    missing = reply.missing if isinstance(reply, VerifyReply) else frozenset()
    admitted = Admission(reply.error, reply.ordinal)
    refused = Admission(ErrorCode.TRANSACTION_ABORTABLE)
    return {each: refused if _enlisted(each) in missing else admitted for each in partitions}


def _may_be_later(wanted: Wanted, admissions: Mapping[Partition, Admission]) -> bool:
    errors = {each.error for each in admissions.values()}
    return wanted.adds and errors == {ErrorCode.CONCURRENT_TRANSACTIONS}
