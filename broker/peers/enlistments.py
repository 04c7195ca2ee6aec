"""AddPartitionsToTxn between brokers: leaders ask transaction coordinators about partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.client.errors import check
from tidelog.coordinator.transaction.commands import Identity
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.schemas.transactions import (
    NO_ORDINAL,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)


class Enlistment(NamedTuple):
    """Partitions to add to a producer's transaction, or to verify in it."""

    transactional_id: str
    identity: Identity
    adds: bool
    partitions: frozenset[EnlistedPartition]
    topic_ids: Mapping[str, TopicId]
    """The topics that the leader means by these names."""


class Enlisted(NamedTuple):
    """The coordinator's answer: each partition's code, and the transaction's ordinal (H1)."""

    codes: Mapping[EnlistedPartition, ErrorCode]
    ordinal: int


class EnlistmentForm:
    """Enlistments of several transactions in one request.

    The coordinator answers when the additions are durable (H2). A repeated enlistment does no harm:
    the partition is in the transaction already, or the transaction is over and the coordinator
    refuses. A late answer does none either: its ordinal guards the append.
    """

    purpose: Final = "enlistments"

    def size(self, item: Enlistment) -> int:
        return len(item.partitions)

    def request(self, items: Sequence[Enlistment]) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=item.transactional_id,
                    producer_id=item.identity.producer_id,
                    producer_epoch=item.identity.epoch,
                    verify_only=not item.adds,
                    topics=[
                        AddPartitionsToTxnTopic(
                            name=name, partitions=numbers, topic_id=item.topic_ids[name]
                        )
                        for name, numbers in by_topic(item.partitions).items()
                    ],
                )
                for item in items
            ]
        )

    def replies(
        self, items: Sequence[Enlistment], response: AddPartitionsToTxnResponse
    ) -> list[Enlisted]:
        """The results, which come in the order of the transactions."""
        check("AddPartitionsToTxn", response.error_code)
        results = response.results_by_transaction
        if len(results) != len(items):
            raise MalformedMessage(f"{len(results)} results answer {len(items)} transactions")
        return [_enlisted(item, result) for item, result in zip(items, results, strict=True)]


def by_topic(partitions: frozenset[EnlistedPartition]) -> Mapping[str, list[int]]:
    """The partitions' numbers by topic, in order."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def _enlisted(item: Enlistment, result: AddPartitionsToTxnResult) -> Enlisted:
    codes = {
        EnlistedPartition(topic.name, each.partition_index): code_of(each.partition_error_code)
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
    if result.transactional_id != item.transactional_id or codes.keys() != item.partitions:
        raise MalformedMessage(f"a result answers another transaction than {item}")
    if ErrorCode.NONE in codes.values() and result.ordinal == NO_ORDINAL:
        raise MalformedMessage("the coordinator tells no ordinal: its version is too old")
    return Enlisted(codes, result.ordinal)


def code_of(number: int) -> ErrorCode:
    """The error code of this number. Raises MalformedMessage if there is none."""
    try:
        return ErrorCode(number)
    except ValueError as error:
        raise MalformedMessage(f"there is no error code {number}") from error
