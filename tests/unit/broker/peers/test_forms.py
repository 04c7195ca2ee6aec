"""The messages between brokers on the wire, and answers that do not fit."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.broker.peers.enlistments import Enlisted, Enlistment, EnlistmentForm
from tidelog.broker.peers.hints import HintForm
from tidelog.broker.peers.markers import MarkerForm, RemoteMarkers
from tidelog.broker.peers.moves import Move, MoveForm, MoveOutcome
from tidelog.broker.peers.rebalances import Rebalanced, RebalanceForm
from tidelog.client.errors import RequestRefused
from tidelog.coordinator.transaction.commands import Identity
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.identifiers import BrokerId, ProducerEpoch, ProducerId
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.protocol.schemas.own.rebalance import BrokerRebalance, RebalanceBrokersResponse
from tidelog.protocol.schemas.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

P, Q, R = EnlistedPartition("t", 0), EnlistedPartition("t", 4), EnlistedPartition("u", 1)
IDS = {"t": UUID(int=7), "u": UUID(int=8)}
ENLISTMENT = Enlistment(
    "x", Identity(ProducerId(5), ProducerEpoch(2)), True, frozenset({P, Q, R}), IDS
)
MARKERS = RemoteMarkers(
    Markers("x", ProducerId(5), ProducerEpoch(2), 1, True, 9, 2, frozenset({P, Q, R})),
    frozenset({P, R}),
    IDS,
)


def added(*codes: tuple[EnlistedPartition, int], ordinal: int = 9) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id="x",
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=each.topic,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=each.partition, partition_error_code=code
                    )
                ],
            )
            for each, code in codes
        ],
        ordinal=ordinal,
    )


def marked(*codes: tuple[EnlistedPartition, int], producer_id: int = 5) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=each.topic,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=each.partition, error_code=code
                    )
                ],
            )
            for each, code in codes
        ],
    )


@pytest.mark.parametrize("adds", [True, False])
def test_an_enlistment_goes_and_comes_back_with_the_ordinal(adds: bool) -> None:
    asked = ENLISTMENT._replace(adds=adds)
    encoded = b"".join(map(bytes, encode(EnlistmentForm().request([asked]), 5)))
    (transaction,) = decode(AddPartitionsToTxnRequest, encoded, 5).transactions
    assert transaction.verify_only == (not adds)
    assert (transaction.producer_id, transaction.producer_epoch) == (5, 2)
    assert [(each.name, each.partitions, each.topic_id) for each in transaction.topics] == [
        ("t", [0, 4], UUID(int=7)),
        ("u", [1], UUID(int=8)),
    ]
    response = AddPartitionsToTxnResponse(results_by_transaction=[added((P, 0), (Q, 120), (R, 0))])
    encoded = b"".join(map(bytes, encode(response, 5)))
    (reply,) = EnlistmentForm().replies([asked], decode(AddPartitionsToTxnResponse, encoded, 5))
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    assert reply == Enlisted({P: ErrorCode.NONE, Q: abortable, R: ErrorCode.NONE}, 9)


@pytest.mark.parametrize(
    "results",
    [
        [],
        [added((P, 0), (Q, 0))],
        [added((P, 0), (Q, 0), (R, 0), ordinal=-1)],
        [added((P, 0), (Q, 0), (R, 31_000))],
    ],
    ids=["no result", "a partition is missing", "no ordinal", "an unknown code"],
)
def test_an_answer_that_does_not_fit_the_enlistment_counts_as_none(
    results: list[AddPartitionsToTxnResult],
) -> None:
    response = AddPartitionsToTxnResponse(results_by_transaction=results)
    with pytest.raises(MalformedMessage):
        EnlistmentForm().replies([ENLISTMENT], response)


def test_a_refusal_of_the_whole_request_enlists_nothing() -> None:
    response = AddPartitionsToTxnResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    with pytest.raises(RequestRefused):
        EnlistmentForm().replies([ENLISTMENT], response)


def test_markers_name_the_transaction_and_the_topics() -> None:
    encoded = b"".join(map(bytes, encode(MarkerForm().request([MARKERS]), 2)))
    (marker,) = decode(WriteTxnMarkersRequest, encoded, 2).markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 2, 1)
    assert (marker.transaction_result, marker.ordinal, marker.transaction_version) == (True, 9, 2)
    assert [(each.name, each.partition_indexes, each.topic_id) for each in marker.topics] == [
        ("t", [0], UUID(int=7)),
        ("u", [1], UUID(int=8)),
    ]
    response = WriteTxnMarkersResponse(markers=[marked((P, 0), (R, 6))])
    (codes,) = MarkerForm().replies([MARKERS], response)
    assert codes == {P: ErrorCode.NONE, R: ErrorCode.NOT_LEADER_OR_FOLLOWER}


@pytest.mark.parametrize(
    "results",
    [[], [marked((P, 0))], [marked((P, 0), (R, 0), producer_id=6)]],
    ids=["no result", "a partition is missing", "another producer"],
)
def test_an_answer_that_does_not_fit_the_markers_settles_nothing(
    results: list[WritableTxnMarkerResult],
) -> None:
    with pytest.raises(MalformedMessage):
        MarkerForm().replies([MARKERS], WriteTxnMarkersResponse(markers=results))


def test_a_request_carries_the_newest_of_several_hints() -> None:
    assert HintForm().request([4, 9, 7]).sequence == 9


def test_an_error_of_the_whole_request_answers_each_move() -> None:
    moves = [Move("t", 0, BrokerId(2)), Move("u", 1, BrokerId(3))]
    refused = AlterPartitionReassignmentsResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="no ALTER on the cluster"
    )

    outcome = MoveOutcome(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no ALTER on the cluster")
    assert MoveForm().replies(moves, refused) == [outcome, outcome]


def test_an_owner_that_leaves_out_a_move_is_malformed() -> None:
    silent = AlterPartitionReassignmentsResponse(error_message=None)

    with pytest.raises(MalformedMessage, match="no result answers"):
        MoveForm().replies([Move("t", 0, BrokerId(2))], silent)


def test_of_two_receivers_of_a_partition_the_first_one_is_asked_for() -> None:
    """Two operators move the same partition at the same time."""
    moves = [Move("t", 0, BrokerId(2)), Move("t", 0, BrokerId(3)), Move("t", 0, BrokerId(2))]
    request = MoveForm().request(moves)
    response = AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_message=None
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )

    assert [each.partitions for each in request.topics] == [
        [ReassignablePartition(partition_index=0, replicas=[2])]
    ]
    first, other, same = MoveForm().replies(moves, response)
    assert first == same == MoveOutcome(ErrorCode.NONE)
    assert other.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_error_of_the_whole_request_answers_each_operator_that_rebalances() -> None:
    refused = RebalanceBrokersResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message="no ALTER on the cluster"
    )

    outcome = Rebalanced(0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no ALTER on the cluster")
    assert RebalanceForm().replies([BrokerId(2), BrokerId(2)], refused) == [outcome, outcome]


def test_a_rebalance_with_an_unknown_error_code_is_malformed() -> None:
    strange = BrokerRebalance(broker_id=2, error_code=30_000, error_message=None, given=0)
    response = RebalanceBrokersResponse(error_message=None, brokers=[strange])

    with pytest.raises(MalformedMessage, match="30000"):
        RebalanceForm().replies([BrokerId(2)], response)
