"""Errors in the shape of each request's answers, and the counting of errors in answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.broker.handlers.error_responses import CODE_NAMES, count_errors, error_response
from tidelog.broker.telemetry.metrics import RequestMetrics
from tidelog.protocol.api import ADVERTISED, ApiKey, OwnApiKey, request_type, response_type
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.fields import WireKind, WireType
from tidelog.protocol.message import Response, Struct
from tidelog.protocol.schemas.cluster.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.schemas.groups import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.schemas.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.schemas.produce import ProduceRequest

CODE = ErrorCode.UNKNOWN_SERVER_ERROR
SERVED: list[tuple[ApiKey | OwnApiKey, int]] = [
    *(
        (key, version)
        for key, (lowest, highest) in ADVERTISED.items()
        for version in range(lowest, highest + 1)
    ),
    *((key, version) for key in OwnApiKey for version in request_type(key).VERSIONS),
]
NUMBER, TEXT, ID = 7, "asked", UUID(int=7)
WORDLESS = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}
"""As in Kafka, a failed request is answered without directories."""
NAMELESS = {
    # APIs whose results have the order of the request.
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
}
_VALUES: dict[WireKind, object] = {
    WireKind.FIXED: NUMBER,
    WireKind.UUID: ID,
    WireKind.STRING: TEXT,
    WireKind.BINARY: b"",
    WireKind.RECORDS: None,
}


def asked(type_: type[Struct], version: int) -> Any:
    """A structure with one element in each list that it has in this version."""

    def value(wire: WireType) -> object:
        if wire.kind is WireKind.ARRAY:
            assert wire.element is not None
            return [value(wire.element)]
        if wire.struct is not None:
            return asked(wire.struct, version)
        return _VALUES[wire.kind] if wire.code != "?" else True

    present = (field for field in type_.FIELDS if version in field.versions)
    return type_(**{field.name: value(field.type) for field in present})


def failed(key: int, version: int) -> Response:
    """The failure as a client decodes it: the encoding drops fields that this version does not
    have."""
    response = error_response(asked(request_type(key), version), version, CODE, "it failed")
    assert response is not None
    return decode(response_type(key), b"".join(map(bytes, encode(response, version))), version)


def elements(struct: Struct) -> Iterator[Struct]:
    """The elements of all lists in a structure."""
    for field in struct.FIELDS:
        if field.type.element is not None and field.type.element.struct is not None:
            for each in getattr(struct, field.name) or ():
                yield each
                yield from elements(each)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=lambda each: str(each))
def test_every_request_has_an_answer_that_says_that_it_failed(
    key: ApiKey | OwnApiKey, version: int
) -> None:
    received = failed(key, version)
    metrics = RequestMetrics()
    for _ in count_errors(received, metrics):
        pass
    assert list(metrics.errors.by_label) == ([] if (key, version) in WORDLESS else [CODE.name])
    for struct in (received, *elements(received)):
        own = [getattr(struct, field.name) for field in struct.FIELDS if field.name in CODE_NAMES]
        assert set(own) <= {CODE, 0}
        assert getattr(struct, "error_message", None) in (None, "", "it failed")


@pytest.mark.parametrize(
    ("key", "version"),
    [case for case in SERVED if case[0] not in NAMELESS],
    ids=lambda each: str(each),
)
def test_every_element_of_a_failed_answer_names_its_part_of_the_request(
    key: ApiKey | OwnApiKey, version: int
) -> None:
    for struct in elements(failed(key, version)):
        named = (struct, *elements(struct))
        values = [getattr(each, field.name) for each in named for field in each.FIELDS]
        assert any(value in (NUMBER, TEXT, ID) for value in values), struct


def test_a_partition_has_the_name_that_the_answer_calls_it_by() -> None:
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=3)])])
    response = error_response(request, 6, CODE, "")
    assert isinstance(response, FetchResponse)
    (partition,) = response.responses[0].partitions
    assert (response.responses[0].topic, partition.partition_index) == ("t", 3)
    assert partition.high_watermark == -1


def test_an_error_repeats_only_the_identifying_fields_of_a_request() -> None:
    topic = CreatableTopic(name="t", num_partitions=8, replication_factor=3)
    created = error_response(CreateTopicsRequest(topics=[topic]), 7, CODE, "no")
    assert created == CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", error_code=CODE, error_message="no")]
    )
    partition = OffsetForLeaderPartition(partition=2, leader_epoch=4)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic="t", partitions=[partition])]
    )
    ends = error_response(request, 4, CODE, "")
    assert isinstance(ends, OffsetForLeaderEpochResponse)
    assert ends.topics[0].partitions == [EpochEndOffset(error_code=CODE, partition=2)]


def test_a_member_that_may_not_join_keeps_its_id() -> None:
    response = error_response(JoinGroupRequest(member_id="m"), 9, CODE, "")
    assert response == JoinGroupResponse(error_code=CODE, member_id="m")


def test_a_produce_that_is_not_to_be_answered_has_no_error_either() -> None:
    assert error_response(ProduceRequest(acks=0), 9, CODE, "") is None


def test_everything_that_is_advertised_is_served() -> None:
    assert set(HANDLERS) | {ApiKey.API_VERSIONS} == {*ADVERTISED, *OwnApiKey}


def test_errors_are_counted_wherever_they_are() -> None:
    metrics = RequestMetrics()
    partitions = [MetadataResponsePartition(error_code=code) for code in (0, 5, 5)]
    topics = [MetadataResponseTopic(error_code=3), MetadataResponseTopic(partitions=partitions)]
    for _ in count_errors(MetadataResponse(topics=topics, error_code=9999), metrics):
        pass
    assert {name: count.value for name, count in metrics.errors.by_label.items()} == {
        "UNKNOWN_TOPIC_OR_PARTITION": 1,
        "LEADER_NOT_AVAILABLE": 2,
        "error 9999": 1,
    }
