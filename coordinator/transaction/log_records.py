"""The records of `__transaction_state`, with Kafka's own keys and values.

A key is its version (int16) and the transactional id. A value is its version and the transaction,
or null for an expired id (a tombstone). Values of version 1 have tagged fields. Tidelog's own
fields have tags far above Kafka's, which Kafka's tools skip.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby
from struct import Struct as StructCode
from struct import error as StructError
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import (
    NO_EPOCH,
    NO_ID,
    NO_TRANSACTION,
    NOT_BEGUN,
    EnlistedPartition,
    Transaction,
)
from tidelog.errors import TidelogError
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.errors import MalformedMessage, UnsupportedVersion
from tidelog.protocol.fields import array, int8, int16, int32, int64, string
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.wire import Buffer

_VERSION = StructCode(">h")
_KEY_VERSION = 0
_VALUE_VERSION = 1
"""Version 0 is read but never written: it has no tagged fields."""

STORED_STATES: Final[Mapping[int, TransactionState]] = MappingProxyType(
    {
        state.value: state
        for state in TransactionState
        if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
    }
)


class UnknownTransactionRecord(TidelogError):
    """A record of `__transaction_state` does not decode.

    State that depends on it must not be used.
    """


class TransactionStored(NamedTuple):
    """The new state of a transactional id's transaction."""

    transactional_id: str
    transaction: Transaction


class TransactionRemoved(NamedTuple):
    """A transactional id has expired."""

    transactional_id: str


TransactionRecord: TypeAlias = TransactionStored | TransactionRemoved


class TransactionLogKey(Message, versions=(0, 0)):
    """The record key of a transactional id."""

    transactional_id: str = string()


class PartitionsOfTopic(Struct):
    """The enlisted partitions of one topic."""

    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, versions=(0, 1), flexible=1):
    """The record value of a transaction. The partitions are null in the state Empty."""

    producer_id: int = int64()
    previous_producer_id: int = int64("1+", default=NO_ID, tag=0)
    next_producer_id: int = int64("1+", default=NO_ID, tag=1)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsOfTopic] | None = array(PartitionsOfTopic, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", tag=2)
    ordinal: int = int64("1+", default=NO_TRANSACTION, tag=10_000)
    last_producer_epoch: int = int16("1+", default=NO_EPOCH, tag=10_001)


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; a tombstone's value is None."""
    key = _key_of(record.transactional_id)
    match record:
        case TransactionStored(_, transaction):
            return key, _encoded(_value_of(transaction), _VALUE_VERSION)
        case TransactionRemoved():
            return key, None


def decode_record(key: Buffer | None, value: Buffer | None) -> TransactionRecord:
    """The record with this key and value, in any version up to the newest known one.

    Raises UnknownTransactionRecord.
    """
    if key is None:
        raise UnknownTransactionRecord("a record of __transaction_state has no key")
    try:
        (version,) = _VERSION.unpack_from(key)
        transactional_id = decode(TransactionLogKey, key, version, _VERSION.size).transactional_id
        if value is None:
            return TransactionRemoved(transactional_id)
        (version,) = _VERSION.unpack_from(value)
        found = decode(TransactionLogValue, value, version, _VERSION.size)
    except (MalformedMessage, UnsupportedVersion, StructError) as error:
        raise UnknownTransactionRecord(
            f"a record of __transaction_state does not decode: {error}"
        ) from error
    return TransactionStored(transactional_id, _transaction_in(transactional_id, found))


@lru_cache(1024)
def _key_of(transactional_id: str) -> bytes:
    """A transaction writes three records with the same key."""
    return _encoded(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def _value_of(transaction: Transaction) -> TransactionLogValue:
    partitions = None
    if transaction.state is not TransactionState.EMPTY:
        by_topic = groupby(sorted(transaction.partitions), key=lambda each: each.topic)
        partitions = [
            PartitionsOfTopic(topic=topic, partition_ids=[each.partition for each in group])
            for topic, group in by_topic
        ]
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.value,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.begun_ms,
        client_transaction_version=transaction.client_version,
        ordinal=transaction.ordinal,
        last_producer_epoch=transaction.last_epoch,
    )


def _transaction_in(transactional_id: str, found: TransactionLogValue) -> Transaction:
    state = STORED_STATES.get(found.transaction_status)
    if state is None:
        raise UnknownTransactionRecord(
            f"transactional id {transactional_id} is stored in state {found.transaction_status}, "
            "which is never stored"
        )
    partitions = frozenset(
        EnlistedPartition(each.topic, number)
        for each in found.transaction_partitions or ()
        for number in each.partition_ids
    )
    if state in (TransactionState.EMPTY, TransactionState.ONGOING) and bool(partitions) != (
        state is TransactionState.ONGOING
    ):
        raise UnknownTransactionRecord(
            f"transactional id {transactional_id} is {state.label} with {len(partitions)} "
            "partitions"
        )
    if found.transaction_start_timestamp_ms < NOT_BEGUN or found.producer_id < 0:
        raise UnknownTransactionRecord(
            f"transactional id {transactional_id} has the producer id {found.producer_id} and began"
            f" at {found.transaction_start_timestamp_ms}"
        )
    return Transaction(
        producer_id=ProducerId(found.producer_id),
        producer_epoch=ProducerEpoch(found.producer_epoch),
        state=state,
        timeout_ms=found.transaction_timeout_ms,
        updated_ms=found.transaction_last_update_timestamp_ms,
        begun_ms=found.transaction_start_timestamp_ms,
        partitions=partitions,
        previous_producer_id=ProducerId(found.previous_producer_id),
        next_producer_id=ProducerId(found.next_producer_id),
        last_epoch=ProducerEpoch(found.last_producer_epoch),
        ordinal=found.ordinal,
        client_version=found.client_transaction_version,
    )


def _encoded(message: Message, version: int) -> bytes:
    return b"".join(encode(message, version, bytearray(_VERSION.pack(version))))
