"""Long requests are cut, and the answers to their parts put together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.properties.protocol.messages import random_message
from tidelog.broker.dispatch.request_parts import DIVISIONS, Division, cut, is_long, join
from tidelog.protocol.api import ApiKey, request_type, response_type
from tidelog.protocol.message import Message
from tidelog.protocol.schemas.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

DELETE = DIVISIONS[ApiKey.OFFSET_DELETE]


def entries(node: Any, path: tuple[str, ...], around: tuple[object, ...] = ()) -> list[object]:
    """Each entry, with the names of the structures around it."""
    found: list[object] = []
    for each in getattr(node, path[0]) or ():
        if len(path) == 1:
            found.append((*around, each))
            continue
        named = tuple(getattr(each, f.name) for f in each.FIELDS if f.name != path[1])
        found += entries(each, path[1:], (*around, named))
    return found


def deleting(*topics: tuple[str, range]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
            )
            for name, numbers in topics
        ],
    )


def deleted(request: OffsetDeleteRequest, error_code: int = 0) -> OffsetDeleteResponse:
    """One answer for each entry."""
    return OffsetDeleteResponse(
        error_code=error_code,
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def marking(numbers: range) -> WritableTxnMarker:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=list(numbers))
    return WritableTxnMarker(producer_id=5, producer_epoch=0, topics=[topic])


def marked(request: Any) -> WriteTxnMarkersResponse:
    """One answer for each partition."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=each)
                            for each in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@pytest.mark.parametrize("key", sorted(DIVISIONS))
def test_a_division_names_fields_of_request_and_response(key: int) -> None:
    division = DIVISIONS[key]
    for message_type, path in (
        (request_type(key), division.entries),
        (response_type(key), division.answers),
    ):
        fields: Any = message_type.FIELDS
        for position, name in enumerate(path):
            (field,) = [each for each in fields if each.name == name]
            element = field.type.element
            assert element is not None
            if position + 1 < len(path):
                assert element.struct is not None
                fields = element.struct.FIELDS


@pytest.mark.parametrize("key", sorted(DIVISIONS))
@pytest.mark.parametrize("seed", range(10))
def test_the_parts_of_a_request_are_the_request(key: int, seed: int) -> None:
    message: Message = random_message(request_type(key), request_type(key).VERSIONS[-1], seed, 6)
    path = DIVISIONS[key].entries
    division = Division(path, DIVISIONS[key].answers, 3)
    parts = [part.request for part in cut(division, message)]  # type: ignore[arg-type]
    assert [each for part in parts for each in entries(part, path)] == entries(message, path)
    assert all(len(entries(part, path)) == 3 for part in parts[:-1])
    assert is_long(division, message) == (len(entries(message, path)) > 3)  # type: ignore[arg-type]
    for part in parts:
        assert type(part) is type(message)
        for field in message.FIELDS:
            if field.name != path[0]:
                assert getattr(part, field.name) == getattr(message, field.name)


def test_a_topic_that_was_cut_is_answered_as_one_topic() -> None:
    request = deleting(("a", range(300)), ("b", range(1)), ("c", range(200)))
    parts = list(cut(DELETE, request))
    assert len(parts) == 4
    answers = [deleted(part.request) for part in parts]  # type: ignore[arg-type]
    assert join(DELETE, parts, answers) == deleted(request)


def test_two_markers_of_a_producer_have_an_answer_each() -> None:
    """A coordinator sends the markers of a transaction's partitions in several items, and counts
    the answers."""
    division = DIVISIONS[ApiKey.WRITE_TXN_MARKERS]
    request = WriteTxnMarkersRequest(markers=[marking(range(128)), marking(range(128, 130))])
    parts = list(cut(division, request))
    answers = [marked(part.request) for part in parts]
    assert join(division, parts, answers) == marked(request)


def test_an_error_of_all_is_the_answer() -> None:
    request = deleting(("a", range(300)))
    parts = list(cut(DELETE, request))
    answers = [deleted(part.request, code) for part, code in zip(parts, (0, 69, 0), strict=True)]  # type: ignore[arg-type]
    assert join(DELETE, parts, answers) is answers[1]


def test_a_request_without_an_answer_has_none() -> None:
    parts = list(cut(DELETE, deleting(("a", range(200)))))
    assert join(DELETE, parts, [None, None]) is None


def test_a_request_of_the_usual_length_is_not_cut() -> None:
    data = [PartitionProduceData(index=number, records=b"") for number in range(100)]
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)])
    assert not is_long(DIVISIONS[ApiKey.PRODUCE], request)
    request.topic_data *= 2
    assert is_long(DIVISIONS[ApiKey.PRODUCE], request)
