"""Transactions, as an administrator sees them (KIP-664): listed, described, and looked for in the
partitions, where those may hang that no coordinator knows any more; and ended there."""

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
"""What a transactional id may be in."""
_PATTERNS_FROM: Final = 2
_DURATIONS_FROM: Final = 1
_PARTITIONS_MAX: Final = 1000
"""Of one request about producers."""


class FilterNotServed(Refused):
    """A broker is too old for what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """Which transactions to list; what is left as it is lets all pass."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int = -1
    """Those that have gone on for longer."""
    pattern: str = ""
    """A regular expression that describes the whole transactional id (KIP-1152)."""


EVERY_TRANSACTION: Final = TransactionFilter()


class TransactionOwner(NamedTuple):
    """Whose transaction it is in a partition, as its marker names it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Of the coordinator that wrote the producer's last marker there; -1 if none did."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition, as the partition's leader knows it."""

    place: Place
    producer: DescribedProducer

    @property
    def start_offset(self) -> int:
        """Where it begins there."""
        return self.producer.current_txn_start_offset

    @property
    def owner(self) -> TransactionOwner:
        """Who is to be named to end it."""
        known = self.producer
        return TransactionOwner(known.producer_id, known.producer_epoch, known.coordinator_epoch)


async def list_transactions(
    client: Client, wanted: TransactionFilter = EVERY_TRANSACTION
) -> list[ListedTransaction]:
    """The transactional ids of all brokers, by name.

    Raises:
        RequestRefused, RequestFailed: one of the brokers cannot say.
        FilterNotServed: one of the brokers does not know such a filter.
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
    """The newest transaction of a transactional id, by its coordinator.

    Raises:
        RequestRefused, RequestFailed: there is no such id, or no answer.
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
    """The transactions that are open in these partitions, in the order of their offsets; a leader
    is asked about many partitions at a time.

    Raises:
        RequestRefused, RequestFailed: one of the partitions does not exist or cannot be asked.
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
    """The transactions in which nothing was appended for `age_ms`, and which will not end by
    themselves: no coordinator has the partition in a transaction of that producer.

    Raises:
        RequestRefused, RequestFailed: something could not be asked.
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
    # One that was ended between the questions does not hang.
    again = await open_transactions(client, sorted({place for place, _, _ in suspects}))
    return [
        each
        for each in again
        if (each.place, each.producer.producer_id, each.start_offset) in suspects
    ]


async def enlisted_partitions(
    client: Client, producer_ids: Collection[int]
) -> dict[tuple[int, Place], str]:
    """The partitions that coordinators have in transactions of these producers, which will so be
    ended; and the transactional id of each.

    Raises:
        RequestRefused, RequestFailed: a coordinator could not be asked.
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
    """Have the leader of one partition end a producer's transaction there with an ABORT marker. No
    coordinator is asked: this is for transactions that hang.

    Raises:
        RequestRefused: it was not aborted; INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED:
            the partition knows newer epochs.
        RequestFailed: no answer; asking again does no harm.
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
