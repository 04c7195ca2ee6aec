"""Asks a coordinator whether a partition may take a producer's transactional batches.

A transaction's first batch in a partition needs the partition in the producer's ongoing transaction
(KIP-890). In the first version the producer has added it, and the broker asks the coordinator to
verify that. In the second version the broker asks the coordinator to add it. The coordinator
answers with the transaction's ordinal (rule H1), which guards the append. If the transaction is
decided before the append, the log refuses the batch.

A coordinator on this broker answers at once. Its addition precedes the batch in the same WAL, so
the batch does not survive without it (H2).
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
"""The attempts while a coordinator still ends the previous transaction; the times are Kafka's."""


class Admission(NamedTuple):
    """The coordinator's answer for a partition: the transaction's ordinal, or the error."""

    error: ErrorCode
    ordinal: int = NO_ORDINAL


class Wanted(NamedTuple):
    """The transaction that a request's batches belong to."""

    transactional_id: str
    identity: Identity
    transaction_version: int
    """The `transaction.version` that the producer uses."""

    @property
    def adds(self) -> bool:
        """Whether the coordinator must add the partitions; otherwise the producer did so."""
        return self.transaction_version >= OWN_EPOCHS_FROM


def transactional_identity(records: Buffer) -> Identity | None:
    """The producer id and epoch of a transactional batch; None for any other batch.

    None also for a malformed batch: its validation will refuse it.
    """
    if len(records) < HEADER_SIZE or not records[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_FLAG:
        return None
    header = BatchHeader.parse(records)
    return Identity(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))


class Admissions:
    """Asks the transaction coordinators of this broker."""

    def __init__(self, coordinators: Coordinators, clock: Clock) -> None:
        self._coordinators = coordinators
        self._clock = clock

    def admit_at_once(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission] | None:
        """Each partition's admission; None if it needs a wait: then use `admit`."""
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
        """Each partition's admission, once the coordinator can answer.

        Retries for a while if the producer's previous transaction is still ending.
        """
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
