"""Transactional ids brought into each state of a coordinator through a broker's handlers, and the
requests that a client of any version would send then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.unit.broker.one_broker import TOPIC, OneBroker
from tests.unit.broker.transactional_client import ask, find, loaded
from tests.unit.coordinator.transaction.request_table import (
    EMPTY,
    ONGOING,
    OTHER_PID,
    PID,
    E,
)
from tests.unit.coordinator.transaction.transaction_world import TV2, P
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.transaction.commands import (
    ANONYMOUS,
    AddPartitions,
    Command,
    EndTransaction,
    Identity,
    InitProducer,
    VerifyPartitions,
)
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.errors import CorruptObject
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.api import ADVERTISED, ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.transaction_listing import (
    DescribedTransaction,
    DescribeTransactionsRequest,
)
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

GROUP_PARTITIONS = 3
GROUP, OTHER_GROUP = "g0", "g1"
assert partition_for(GROUP, GROUP_PARTITIONS) != partition_for(OTHER_GROUP, GROUP_PARTITIONS)
HELD = "held"
"""A topic that takes no marker: a transaction decided with it stays decided and never completes."""
TIMEOUT_MS = 60_000
GOES_ON_FROM = 3
"""The version from which InitProducerId has an identity (KIP-360)."""
MANY_FROM = 4
"""The version from which AddPartitionsToTxn has several transactions, added or verified."""
SECOND_VERSION_ENDS_FROM = 5
OFFSETS_ADD_FROM = 5
"""The version from which TxnOffsetCommit adds the group's partition. Older versions verify it."""


class WireRequest(NamedTuple):
    """A request in one version of its protocol."""

    api: ApiKey
    version: int
    request: Request[Any]


def versions(api: ApiKey, first: int = 0, last: int = 2**15) -> range:
    """The advertised versions of an API from `first` to `last`."""
    lowest, highest = ADVERTISED[api]
    return range(max(lowest, first), min(highest, last) + 1)


@dataclass(frozen=True, slots=True)
class Producer:
    """A transactional id as a request finds it. `identity` is (PID, E) of the table's row."""

    key: str
    identity: Identity

    def stands_for(self, who: Identity) -> Identity:
        """This producer's identity for an identity of the table."""
        if who == ANONYMOUS:
            return who
        is_other = who.producer_id == OTHER_PID
        assert is_other or who.producer_id == PID
        producer_id, epoch = self.identity
        return Identity(
            ProducerId(producer_id + 1_000_000 * is_other),
            ProducerEpoch(epoch + who.epoch - E),
        )


def wire_requests(command: Command, producer: Producer) -> Iterator[WireRequest]:
    """All requests by which a client could send this command."""
    match command:
        case InitProducer():
            who = producer.stands_for(command.identity)
            first = 0 if who == ANONYMOUS else GOES_ON_FROM
            for version in versions(ApiKey.INIT_PRODUCER_ID, first):
                yield init_request(producer.key, who, version)
        case AddPartitions():
            who = producer.stands_for(command.identity)
            is_enlisted = command.partitions == {P}
            for version in versions(ApiKey.ADD_PARTITIONS_TO_TXN):
                yield add_request(producer.key, who, version, 0 if is_enlisted else 1)
            for version in versions(ApiKey.ADD_OFFSETS_TO_TXN):
                yield add_offsets_request(
                    producer.key, who, version, GROUP if is_enlisted else OTHER_GROUP
                )
            for version in versions(ApiKey.TXN_OFFSET_COMMIT, OFFSETS_ADD_FROM):
                yield offsets_request(
                    producer.key, who, version, GROUP if is_enlisted else OTHER_GROUP
                )
        case VerifyPartitions():
            who = producer.stands_for(command.identity)
            is_enlisted = command.partitions == {P}
            for version in versions(ApiKey.ADD_PARTITIONS_TO_TXN, MANY_FROM):
                yield add_request(
                    producer.key, who, version, 0 if is_enlisted else 1, verify_only=True
                )
            for version in versions(ApiKey.TXN_OFFSET_COMMIT, 0, OFFSETS_ADD_FROM - 1):
                yield offsets_request(
                    producer.key, who, version, GROUP if is_enlisted else OTHER_GROUP
                )
        case EndTransaction():
            who = producer.stands_for(command.identity)
            is_second = command.client_version == TV2
            first = SECOND_VERSION_ENDS_FROM if is_second else 0
            last = 2**15 if is_second else SECOND_VERSION_ENDS_FROM - 1
            for version in versions(ApiKey.END_TXN, first, last):
                yield end_request(producer.key, who, version, commit=command.commit)
        case _:
            raise AssertionError(f"no client sends {command}")


def init_request(
    key: str, who: Identity, version: int, timeout_ms: int = TIMEOUT_MS
) -> WireRequest:
    request = InitProducerIdRequest(
        transactional_id=key,
        transaction_timeout_ms=timeout_ms,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
    )
    return WireRequest(ApiKey.INIT_PRODUCER_ID, version, request)


def add_request(
    key: str,
    who: Identity,
    version: int,
    *numbers: int,
    verify_only: bool = False,
    topics: Mapping[str, int] = {},
) -> WireRequest:
    """AddPartitionsToTxn for these partitions of the topic, and for one partition of each of
    `topics`."""
    added = [AddPartitionsToTxnTopic(name=TOPIC, partitions=list(numbers))] if numbers else []
    added += [
        AddPartitionsToTxnTopic(name=name, partitions=[number]) for name, number in topics.items()
    ]
    if version >= MANY_FROM:
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=key,
                    producer_id=who.producer_id,
                    producer_epoch=who.epoch,
                    verify_only=verify_only,
                    topics=added,
                )
            ]
        )
    else:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=key,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=added,
        )
    return WireRequest(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)


def add_offsets_request(key: str, who: Identity, version: int, group: str) -> WireRequest:
    request = AddOffsetsToTxnRequest(
        transactional_id=key,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        group_id=group,
    )
    return WireRequest(ApiKey.ADD_OFFSETS_TO_TXN, version, request)


def offsets_request(key: str, who: Identity, version: int, group: str) -> WireRequest:
    offset = TxnOffsetCommitRequestPartition(committed_offset=1, committed_metadata="")
    request = TxnOffsetCommitRequest(
        transactional_id=key,
        group_id=group,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[offset])],
    )
    return WireRequest(ApiKey.TXN_OFFSET_COMMIT, version, request)


def end_request(key: str, who: Identity, version: int, *, commit: bool) -> WireRequest:
    request = EndTxnRequest(
        transactional_id=key,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        committed=commit,
    )
    return WireRequest(ApiKey.END_TXN, version, request)


def codes_of(response: Response) -> list[ErrorCode]:
    """All error codes of an answer, including those of partitions."""
    if isinstance(response, AddPartitionsToTxnResponse):
        topics = [
            *response.results_by_topic_v3_and_below,
            *(topic for each in response.results_by_transaction for topic in each.topic_results),
        ]
        results = [each for topic in topics for each in topic.results_by_partition]
        return [ErrorCode(each.partition_error_code) for each in results]
    if isinstance(response, TxnOffsetCommitResponse):
        partitions = [each for topic in response.topics for each in topic.partitions]
        return [ErrorCode(each.error_code) for each in partitions]
    return [ErrorCode(response.error_code)]  # type: ignore[attr-defined]


class States:
    """A broker, and transactional ids in any wanted state."""

    def __init__(self, broker: OneBroker) -> None:
        self._broker = broker
        self._count = 0

    async def prepare(self) -> None:
        """Create the topics and coordinators. Call this once, first."""
        await self._broker.create_topic(partitions=2)
        await self._broker.create_topic(HELD)
        for key, key_type in ((GROUP, 0), ("t", 1)):
            await find(self._broker, key, key_type)
        await loaded(self._broker)
        held = self._broker.broker.writes.partitions.named(HELD, 0)
        held.fault = CorruptObject("some/key", "it is broken")

    async def send(self, wire: WireRequest) -> Response:
        """Ask the broker's handler for the request, with encoding and decoding."""
        response: Response = await ask(self._broker, HANDLERS[wire.api], wire.request, wire.version)
        return response

    async def described(self, key: str) -> DescribedTransaction:
        request = DescribeTransactionsRequest(transactional_ids=[key])
        wire = WireRequest(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
        (found,) = (await self.send(wire)).transaction_states  # type: ignore[attr-defined]
        assert isinstance(found, DescribedTransaction)
        return found

    async def new(self, state: TransactionState, version: int) -> Producer:
        """A transactional id in this state, whose producer has moved on to a later epoch. `version`
        is that of its transactions."""
        self._count += 1
        producer = Producer(f"t{self._count}", ANONYMOUS)
        producer = await self._initialised(producer)
        if version == TV2:
            producer = await self._ended(await self._begun(producer, TV2), TV2, commit=True)
        else:
            producer = await self._initialised(producer)
        producer = await self._initialised(producer)
        assert producer.identity.epoch == 2
        if state is not EMPTY:
            producer = await self._begun(producer, version, is_held=state.is_prepared)
        if state not in (EMPTY, ONGOING):
            producer = await self._ended(producer, version, commit=state.is_commit)
        found = await self.described(producer.key)
        assert found.transaction_state == state.label
        assert (found.producer_id, found.producer_epoch) == producer.identity
        return producer

    async def _initialised(self, producer: Producer) -> Producer:
        answer: Any = await self._done(init_request(producer.key, producer.identity, 4))
        return _with(producer, answer)

    async def _begun(self, producer: Producer, version: int, *, is_held: bool = False) -> Producer:
        topics = {"__consumer_offsets": partition_for(GROUP, GROUP_PARTITIONS)}
        if is_held:
            topics[HELD] = 0
        spoken = MANY_FROM if version == TV2 else MANY_FROM - 1
        await self._done(add_request(producer.key, producer.identity, spoken, 0, topics=topics))
        return producer

    async def _ended(self, producer: Producer, version: int, *, commit: bool) -> Producer:
        is_second = version == TV2
        spoken = SECOND_VERSION_ENDS_FROM if is_second else SECOND_VERSION_ENDS_FROM - 1
        wire = end_request(producer.key, producer.identity, spoken, commit=commit)
        answer: Any = await self._done(wire)
        return _with(producer, answer) if is_second else producer

    async def _done(self, wire: WireRequest) -> Response:
        response = await self.send(wire)
        assert set(codes_of(response)) == {ErrorCode.NONE}, response
        return response


def _with(producer: Producer, answer: Any) -> Producer:
    identity = Identity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))
    return replace(producer, identity=identity)
