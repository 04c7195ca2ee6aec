"""One error for a whole request about transactions, in the shape that its answers have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tidelog.protocol.message import Message, Response
from tidelog.protocol.schemas import transaction_listing, transactions

BROKERS_FROM = 4


def _results(
    topics: Sequence[transactions.AddPartitionsToTxnTopic], code: int
) -> list[transactions.AddPartitionsToTxnTopicResult]:
    return [
        transactions.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                transactions.AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=code
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _add_partitions(
    request: transactions.AddPartitionsToTxnRequest, version: int, code: int, _m: str
) -> Response:
    if version >= BROKERS_FROM:
        return transactions.AddPartitionsToTxnResponse(error_code=code)
    results = _results(request.v3_and_below_topics, code)
    return transactions.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _write_markers(
    request: transactions.WriteTxnMarkersRequest, _v: int, code: int, _m: str
) -> Response:
    return transactions.WriteTxnMarkersResponse(
        markers=[
            transactions.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    transactions.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            transactions.WritableTxnMarkerPartitionResult(
                                partition_index=number, error_code=code
                            )
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _commit_offsets(
    request: transactions.TxnOffsetCommitRequest, _v: int, code: int, _m: str
) -> Response:
    return transactions.TxnOffsetCommitResponse(
        topics=[
            transactions.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    transactions.TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_producers(
    request: transaction_listing.DescribeProducersRequest, _v: int, code: int, m: str
) -> Response:
    return transaction_listing.DescribeProducersResponse(
        topics=[
            transaction_listing.DescribeProducersTopicResponse(
                name=topic.name,
                partitions=[
                    transaction_listing.DescribeProducersPartitionResponse(
                        partition_index=number, error_code=code, error_message=m
                    )
                    for number in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe_transactions(
    request: transaction_listing.DescribeTransactionsRequest, _v: int, code: int, _m: str
) -> Response:
    return transaction_listing.DescribeTransactionsResponse(
        transaction_states=[
            transaction_listing.DescribedTransaction(transactional_id=each, error_code=code)
            for each in request.transactional_ids
        ]
    )


TRANSACTION_SHAPES: Final[Mapping[type[Message], Callable[[Any, int, int, str], Response]]] = (
    MappingProxyType(
        {
            transactions.InitProducerIdRequest: lambda _r, _v, code, _m: (
                transactions.InitProducerIdResponse(error_code=code, producer_epoch=-1)
            ),
            transactions.AddPartitionsToTxnRequest: _add_partitions,
            transactions.AddOffsetsToTxnRequest: lambda _r, _v, code, _m: (
                transactions.AddOffsetsToTxnResponse(error_code=code)
            ),
            transactions.EndTxnRequest: lambda _r, _v, code, _m: transactions.EndTxnResponse(
                error_code=code
            ),
            transactions.WriteTxnMarkersRequest: _write_markers,
            transactions.TxnOffsetCommitRequest: _commit_offsets,
            transaction_listing.DescribeProducersRequest: _describe_producers,
            transaction_listing.DescribeTransactionsRequest: _describe_transactions,
            transaction_listing.ListTransactionsRequest: lambda _r, _v, code, _m: (
                transaction_listing.ListTransactionsResponse(error_code=code)
            ),
        }
    )
)
"""(request, version, code, message) -> response."""
