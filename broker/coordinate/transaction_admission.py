"""Asks a coordinator whether a partition may take a producer's transactional batches.

A transaction's first batch in a partition needs the partition in the producer's ongoing transaction
(KIP-890). In the first version the producer has added it, and the broker asks the coordinator to
verify that. In the second version the broker asks the coordinator to add it. The coordinator
answers with the transaction's ordinal (rule H1), which guards the append. If the transaction is
decided before the append, the log refuses the batch.

A coordinator on this broker answers at once. Its addition precedes the batch in the same WAL, so
the batch does not survive without it (H2).

A coordinator on another broker answers when the addition is durable. If this broker dies meanwhile,
the partition is enlisted without data, which does no harm. If the answer is lost, the broker or the
producer asks again. If an old owner of the coordinator's partition wakes up, it answers nothing:
its lease is not fresh (B3). If this broker gave the partition away meanwhile, the append is refused
(C3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.peers.enlistments import Enlistment
from tidelog.broker.peers.peers import Peers
from tidelog.broker.peers.requests import PeerUnreachable
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
from tidelog.identifiers import Epoch, ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from tidelog.records.buffers import Buffer
from tidelog.wal.log.entries import NO_ORDINAL

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.02
ATTEMPTS_MAX: Final = 6
"""The attempts while a coordinator still ends the previous transaction, or is not where this broker
looks for it. The times are Kafka's."""
_ELSEWHERE: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION})
"""Answers of another broker after which this broker reads the metadata log."""


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
    """Asks the transaction coordinators of this broker and of others."""

    def __init__(
        self,
        coordinators: Coordinators,
        peers: Peers,
        renewed: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        """`renewed` waits until the view of the metadata log has been renewed."""
        self._coordinators = coordinators
        self._peers = peers
        self._renewed = renewed
        self._clock = clock

    def admit_at_once(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission] | None:
        """Each partition's admission; None if it needs a wait: then use `admit`."""
        if self._peer(wanted) is not None:
            return None
        try:
            answer = self.ask(wanted, partitions)
            if not answer.done():
                return None
            # A coordinator whose lease is not fresh refuses after it has taken the command.
            admissions = admissions_of(answer.result(), partitions)
        except CoordinatorRefused as error:
            return dict.fromkeys(partitions, Admission(error.code))
        return None if _must_wait(wanted, admissions) else admissions

    async def admit(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission]:
        """Each partition's admission, once the coordinator can answer.

        Retries for a while if the producer's previous transaction is still ending, or if another
        broker does not answer as the coordinator.
        """
        for remaining in reversed(range(ATTEMPTS_MAX)):
            peer = self._peer(wanted)
            if peer is None:
                admissions = await self._admitted_here(wanted, partitions)
                is_elsewhere = False
            else:
                admissions = await self._admitted_there(peer, wanted, partitions)
                is_elsewhere = any(each.error in _ELSEWHERE for each in admissions.values())
            if not (remaining and (is_elsewhere or _must_wait(wanted, admissions))):
                break
            if is_elsewhere:
                await self._renewed()
            await self._clock.sleep(RETRY_SECONDS)
        return admissions

    def _peer(self, wanted: Wanted) -> Epoch | None:
        """The other broker that coordinates the transaction."""
        place = self._coordinators.transactions.place_of(wanted.transactional_id)
        return None if place is None else self._peers.leading(place)

    async def _admitted_here(
        self, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission]:
        try:
            return admissions_of(await self.ask(wanted, partitions), partitions)
        except CoordinatorRefused as error:
            return dict.fromkeys(partitions, Admission(error.code))

    async def _admitted_there(
        self, peer: Epoch, wanted: Wanted, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Admission]:
        enlisted = frozenset(map(_enlisted, partitions))
        ids = {each.topic_name: each.log.partition.topic_id for each in partitions}
        asked = Enlistment(wanted.transactional_id, wanted.identity, wanted.adds, enlisted, ids)
        try:
            codes, ordinal = await self._peers.enlist(peer, asked)
        except PeerUnreachable as error:
            logger.info("a transaction's coordinator gave no answer", extra={"why": str(error)})
            return dict.fromkeys(partitions, Admission(ErrorCode.NETWORK_EXCEPTION))
        return {each: Admission(codes[_enlisted(each)], ordinal) for each in partitions}

    def ask(self, wanted: Wanted, partitions: Sequence[Partition]) -> asyncio.Future[Reply]:
        """Ask a coordinator of this broker to add or to verify the partitions.

        Raises CoordinatorRefused.
        """
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
    """A coordinator's reply for each partition."""
    assert isinstance(reply, AddReply | VerifyReply)
    missing = reply.missing if isinstance(reply, VerifyReply) else frozenset()
    admitted = Admission(reply.error, reply.ordinal)
    refused = Admission(ErrorCode.TRANSACTION_ABORTABLE)
    return {each: refused if _enlisted(each) in missing else admitted for each in partitions}


def _must_wait(wanted: Wanted, admissions: Mapping[Partition, Admission]) -> bool:
    errors = {each.error for each in admissions.values()}
    return wanted.adds and errors == {ErrorCode.CONCURRENT_TRANSACTIONS}
