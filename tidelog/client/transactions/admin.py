"""An administrator's requests about transactions (KIP-664).

Transactions can be listed and described. Hanging transactions, which no coordinator knows any more,
can be found in partitions and aborted there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.client.errors import ReadRefused, RequestRefused, check, check_read
from tidelog.client.groups.admin import Place
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transaction_listing import (
    DescribedProducer,
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    ListedTransaction,
    ListTransactionsRequest,
)
from tidelog.protocol.schemas.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

NOT_OPEN: Final = -1
"""In place of an offset: the producer has no open transaction in the partition."""
FIRST_COORDINATOR_EPOCH: Final = 0
STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
"""The states of a transactional id."""
_PATTERNS_FROM: Final = 2
_DURATIONS_FROM: Final = 1
_PARTITIONS_MAX: Final = 1000
"""Partitions in one DescribeProducers request."""


class FilterNotServed(Refused):
    """A broker is too old for the requested filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """Selects transactions to list; the defaults select all."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int = -1
    """Selects transactions that have been open for longer."""
    pattern: str = ""
    """A regular expression that must match the whole transactional id (KIP-1152)."""


EVERY_TRANSACTION: Final = TransactionFilter()


class TransactionOwner(NamedTuple):
    """The producer of a transaction in a partition, as its marker names it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The epoch of the coordinator that wrote the producer's last marker there; -1 if there is
    none.
    """


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in a partition, as the partition's leader knows it."""

    place: Place
    producer: DescribedProducer

    @property
    def start_offset(self) -> int:
        """The transaction's first offset in the partition."""
        return self.producer.current_txn_start_offset

    @property
    def owner(self) -> TransactionOwner:
        """The producer that an abort of the transaction must name."""
        known = self.producer
        return TransactionOwner(known.producer_id, known.producer_epoch, known.coordinator_epoch)


async def list_transactions(
    client: Client, wanted: TransactionFilter = EVERY_TRANSACTION
) -> list[ListedTransaction]:
    """The transactional ids of all brokers, by name.

    Raises:
        RequestRefused, RequestFailed: a broker refuses or does not answer.
        FilterNotServed: a broker does not know the filter.
    """
    request = ListTransactionsRequest(
        state_filters=list(wanted.states),
        producer_id_filters=list(wanted.producer_ids),
        duration_filter=wanted.duration_ms,
        transactional_id_pattern=wanted.pattern or None,
    )
    needed = _PATTERNS_FROM if wanted.pattern else _DURATIONS_FROM * (wanted.duration_ms >= 0)
    found = []
    for broker in (await client.metadata([])).brokers:
        subject = f"transactions of broker {broker.node_id}"
        connection = await client.connection_to(broker.node_id)
        if connection.version_of(ListTransactionsRequest) < needed:
            raise FilterNotServed(f"{subject}: the broker is too old for such a filter")
        response = await connection.request(request)
        check_read(subject, response.error_code)
        if response.unknown_state_filters:
            names = ", ".join(response.unknown_state_filters)
            raise ReadRefused(subject, ErrorCode.INVALID_REQUEST, f"unknown states {names}")
        found += response.transaction_states
    return sorted(found, key=lambda each: each.transactional_id)


async def describe_transaction(client: Client, transactional_id: str) -> DescribedTransaction:
    """The newest transaction of a transactional id, from its coordinator.

    Raises:
        RequestRefused, RequestFailed: the id does not exist, or no answer.
    """
    subject = f"transactional id {transactional_id}"
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = await client.request_to_coordinator(
        CoordinatorKind.TRANSACTION, transactional_id, request
    )
    for each in response.transaction_states:
        check_read(subject, each.error_code)
        return each
    raise ReadRefused(subject, ErrorCode.UNKNOWN_SERVER_ERROR, "no answer")


async def open_transactions(client: Client, places: Sequence[Place]) -> list[OpenTransaction]:
    """The open transactions in these partitions, by partition and offset.

    One request asks a leader about many partitions.

    Raises:
        RequestRefused, RequestFailed: a partition does not exist, or its leader does not answer.
    """
    led: dict[int, list[Place]] = {}
    for place in sorted(places):
        led.setdefault(await client.leader(*place), []).append(place)
    found = []
    for leader_id, all_of_it in led.items():
        for start in range(0, len(all_of_it), _PARTITIONS_MAX):
            some = all_of_it[start : start + _PARTITIONS_MAX]
            found += await _open_in(client, leader_id, some)
    return sorted(found, key=lambda each: (each.place, each.start_offset))


async def _open_in(
    client: Client, leader_id: int, places: Sequence[Place]
) -> list[OpenTransaction]:
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    request = DescribeProducersRequest(
        topics=[
            DescribeProducersTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ]
    )
    response = await client.request_broker(leader_id, request)
    found = []
    for topic in response.topics:
        for each in topic.partitions:
            place = Place(topic.name, each.partition_index)
            if each.error_code != ErrorCode.NONE:
                client.forget(topic.name)
            subject = f"producers of {place.topic}-{place.partition}"
            check_read(subject, each.error_code, each.error_message)
            found += [
                OpenTransaction(place, producer)
                for producer in each.active_producers
                if producer.current_txn_start_offset != NOT_OPEN
            ]
    return found


async def hanging_transactions(
    client: Client, places: Sequence[Place], *, age_ms: int, now_ms: int
) -> list[OpenTransaction]:
    """The open transactions without an append for `age_ms` that no coordinator will end.

    No coordinator has the partition in a transaction of their producer.

    Raises:
        RequestRefused, RequestFailed: a broker refuses or does not answer.
    """
    old = [
        each
        for each in await open_transactions(client, places)
        if now_ms - each.producer.last_timestamp >= age_ms
    ]
    if not old:
        return []
    enlisted = await enlisted_partitions(client, {each.producer.producer_id for each in old})
    suspects = {
        (each.place, each.producer.producer_id, each.start_offset)
        for each in old
        if (each.producer.producer_id, each.place) not in enlisted
    }
    # A transaction that ended between the requests does not hang.
    again = await open_transactions(client, sorted({place for place, _, _ in suspects}))
    return [
        each
        for each in again
        if (each.place, each.producer.producer_id, each.start_offset) in suspects
    ]


async def enlisted_partitions(
    client: Client, producer_ids: Collection[int]
) -> dict[tuple[int, Place], str]:
    """The partitions in coordinators' transactions of these producers, with their transactional
    ids.

    The coordinators will end these transactions.

    Raises:
        RequestRefused, RequestFailed: a coordinator refuses or does not answer.
    """
    found: dict[tuple[int, Place], str] = {}
    wanted = TransactionFilter(producer_ids=sorted(producer_ids))
    for listed in await list_transactions(client, wanted):
        try:
            described = await describe_transaction(client, listed.transactional_id)
        except RequestRefused as refusal:
            if refusal.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue
        found |= {
            (described.producer_id, Place(topic.topic, number)): listed.transactional_id
            for topic in described.topics
            for number in topic.partitions
        }
    return found


async def abort_in_partition(client: Client, place: Place, owner: TransactionOwner) -> None:
    """Abort a producer's hanging transaction in one partition, through the partition's leader.

    The leader writes an ABORT marker without asking a coordinator.

    Raises:
        RequestRefused: the transaction was not aborted. INVALID_PRODUCER_EPOCH or
            TRANSACTION_COORDINATOR_FENCED: the partition knows newer epochs.
        RequestFailed: no answer; a retry is safe.
    """
    topic = WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])
    marker = WritableTxnMarker(
        producer_id=owner.producer_id,
        producer_epoch=owner.producer_epoch,
        coordinator_epoch=max(owner.coordinator_epoch, FIRST_COORDINATOR_EPOCH),
        transaction_result=False,
        topics=[topic],
    )
    response = await client.request_to_leader(
        place.topic, place.partition, WriteTxnMarkersRequest(markers=[marker])
    )
    subject = f"abort of producer {owner.producer_id} in {place.topic}-{place.partition}"
    for each in (p for m in response.markers for t in m.topics for p in t.partitions):
        if each.error_code != ErrorCode.NONE:
            client.forget(place.topic)
        check(subject, each.error_code)
        return
    raise RequestRefused(subject, ErrorCode.UNKNOWN_SERVER_ERROR, "no answer")
