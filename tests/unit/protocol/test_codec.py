"""Stories of single messages: copied, refused and skipped fields."""

from __future__ import annotations

import tracemalloc
from collections.abc import Generator
from typing import TypeVar
from uuid import UUID

import pytest

from tidelog.protocol.codec import (
    decode,
    decode_in_steps,
    decode_short,
    encode,
    encode_in_steps,
    encode_short,
)
from tidelog.protocol.errors import MalformedMessage, UnencodableMessage, UnsupportedVersion
from tidelog.protocol.fields import array, int32, int64, string, struct, uuid
from tidelog.protocol.message import Message, Struct
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
)
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
)
from tidelog.protocol.schemas.groups import DescribeGroupsRequest, SyncGroupResponse
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.wire import (
    ELEMENTS_MAX,
    SHORT_ELEMENTS_MAX,
    STEP_ELEMENTS,
    UNKNOWN_TAGS_MAX,
    Buffer,
    LongMessage,
    uvarint,
)

T = TypeVar("T")


def _produce(records: Buffer | None) -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=records)
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name="flights", partition_data=[partition])],
    )


def _fetch_response(partition: FetchablePartitionResponse) -> FetchResponse:
    topic = FetchableTopicResponse(topic_id=UUID(int=7), partitions=[partition])
    return FetchResponse(responses=[topic])


@pytest.mark.parametrize("version", [7, 9])
def test_records_are_read_as_views_of_the_frame(version: int) -> None:
    frame = bytearray(b"".join(encode(_produce(b"\x11" * 5000), version)))
    request = decode(ProduceRequest, frame, version)
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert len(records) == 5000
    assert records.obj is frame
    # The broker writes offsets into the batches in place.
    records[0] = 0x22
    assert frame.count(0x22) == 1


def test_records_are_written_without_a_copy_and_in_slices() -> None:
    slices: list[Buffer] = [b"a" * 2000, memoryview(b"b" * 10), bytearray(b"c" * 3000)]
    response = _fetch_response(FetchablePartitionResponse(records=slices))
    buffers = encode(response, 16)
    assert [buffer for buffer in buffers if any(buffer is part for part in slices)] == slices
    decoded = decode(FetchResponse, b"".join(buffers), 16)
    assert decoded.responses[0].partitions[0].records == b"".join(slices)


def test_one_large_buffer_is_not_copied_but_a_small_one_is() -> None:
    large = b"x" * 1025
    assert any(buffer is large for buffer in encode(_produce(large), 9))
    assert len(encode(_produce(b"x" * 1024), 9)) == 1


@pytest.mark.parametrize("records", [None, b""])
def test_no_records_and_empty_records_differ(records: bytes | None) -> None:
    encoded = b"".join(encode(_produce(records), 9))
    assert decode(ProduceRequest, encoded, 9).topic_data[0].partition_data[0].records == records


def test_an_absent_tagged_structure_is_none() -> None:
    partition = FetchablePartitionResponse(current_leader=LeaderIdAndEpoch(leader_id=4))
    encoded = b"".join(encode(_fetch_response(partition), 16))
    decoded = decode(FetchResponse, encoded, 16).responses[0].partitions[0]
    assert decoded.current_leader == LeaderIdAndEpoch(leader_id=4, leader_epoch=-1)
    assert decoded.diverging_epoch is None


def test_fields_that_a_version_lacks_take_their_defaults() -> None:
    request = ProduceRequest(transactional_id="t", acks=1)
    assert decode(ProduceRequest, b"".join(encode(request, 2)), 2) == ProduceRequest(acks=1)


def test_defaults_are_not_shared() -> None:
    ProduceRequest().topic_data.append(TopicProduceData())
    assert ProduceRequest().topic_data == []
    first, second = (decode(ProduceRequest, bytes(10), 2) for _ in range(2))
    assert first.topic_data is not second.topic_data


@pytest.mark.parametrize(
    ("version", "encoded", "why"),
    [
        (3, b"\xff\xfe" + bytes(10), "transactional_id announces a length of -2"),
        (3, b"\xff\xff\0\1\0\0\0\0\xff\xff\xff\xff", "topic_data must not be null"),
        (3, b"\xff\xff\0\1\0\0\0\0\xff\xff\xff\x00", "topic_data announces a length of -256"),
        (3, b"\xff\xff\0\1\0\0\0\0\x7f\xff\xff\xff", "announces a length of 2147483647"),
        (3, b"\x00\x02\xc3\x28" + bytes(10), "utf-8"),
        (9, b"\x00\0\1\0\0\0\0\xff\xff\xff\xff\x0f\0", "announces a length of 4294967294"),
        (9, b"\x00\0\1\0\0\0\0\xff\xff\xff\xff\xff\x01", "more than five bytes"),
        (9, b"\x00\0\1\0\0\0\0\xff\xff\xff\xff\x7f\0", "does not fit 32 bits"),
        (9, b"\x00\0\1\0\0\0\0\x01\x01\x05\x7f", "a tagged field announces a length of 127"),
        (9, b"\x00\0\1\0\0\0\0\x01\x00\x00", "followed by 1 bytes"),
    ],
)
def test_malformed_requests_are_refused_by_name(version: int, encoded: bytes, why: str) -> None:
    with pytest.raises(MalformedMessage, match=why) as caught:
        decode(ProduceRequest, encoded, version)
    assert f"ProduceRequest version {version}" in str(caught.value)


def test_a_name_longer_than_kafka_allows_is_refused() -> None:
    groups = [uvarint(32769) + b"g" * 32768, uvarint(32768) + b"g" * 32767]
    with pytest.raises(MalformedMessage, match="length of 32768"):
        decode(DescribeGroupsRequest, b"\x02" + groups[0] + b"\0\0", 5)
    accepted = decode(DescribeGroupsRequest, b"\x02" + groups[1] + b"\0\0", 5)
    assert len(accepted.groups[0]) == 32767
    assert b"".join(encode(accepted, 5)) == b"\x02" + groups[1] + b"\0\0"
    with pytest.raises(UnencodableMessage, match="32768 bytes"):
        encode(DescribeGroupsRequest(groups=["g" * 32768]), 5)


def test_too_many_elements_cost_nothing() -> None:
    count = ELEMENTS_MAX + 1
    hostile = uvarint(count + 1) + b"\x01" * count + b"\0\0"
    for known in (0, SHORT_ELEMENTS_MAX + 1):
        decode(DescribeGroupsRequest, uvarint(known + 1) + b"\x01" * known + b"\0\0", 5)
    tracemalloc.start()
    with pytest.raises(MalformedMessage, match=f"more than {ELEMENTS_MAX} array elements"):
        decode(DescribeGroupsRequest, hostile, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000


def test_a_nullable_structure_has_a_marker() -> None:
    absent = b"".join(encode(ConsumerGroupHeartbeatResponse(), 0))
    present = b"".join(encode(ConsumerGroupHeartbeatResponse(assignment=HeartbeatAssignment()), 0))
    assert absent[-2:] == b"\xff\0"
    assert present[-4:] == b"\x01\x01\0\0"
    assert decode(ConsumerGroupHeartbeatResponse, present, 0).assignment == HeartbeatAssignment()
    with pytest.raises(MalformedMessage, match="marked 2"):
        decode(ConsumerGroupHeartbeatResponse, absent[:-2] + b"\x02\0", 0)


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (ProduceRequest(acks=40_000), 9),
        (MetadataRequest(topics=None), 0),
        (SyncGroupResponse(assignment=None), 4),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=[TopicProduceData(name=None)]), 9),  # type: ignore[arg-type]
        (DescribeGroupsRequest(groups=["\ud800"]), 5),
        (DescribeGroupsRequest(groups=["g" * 40_000]), 0),
    ],
)
def test_a_message_that_does_not_fit_its_schema_is_not_sent(message: Message, version: int) -> None:
    with pytest.raises(UnencodableMessage, match=f"{type(message).__name__} version {version}"):
        encode(message, version)


@pytest.mark.parametrize("version", [-1, 14])
def test_unknown_versions_are_named(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"versions 0 to 13, not {version}"):
        decode(ProduceRequest, b"", version)
    with pytest.raises(UnsupportedVersion, match=f"versions 0 to 13, not {version}"):
        encode(ProduceRequest(), version)


# --- a schema that grows: the newer side sends tagged fields that the older one does not know ---


class OldPart(Struct):
    number: int = int32()


class Old(Message, versions=(0, 0), flexible=0):
    parts: list[OldPart] = array(OldPart)
    note: str = string(tag=1)


class NewPart(Struct):
    number: int = int32()
    ordinal: int = int64(default=-1, tag=3)
    owner: UUID = uuid(tag=200)


class New(Message, versions=(0, 0), flexible=0):
    parts: list[NewPart] = array(NewPart)
    extra: NewPart | None = struct(NewPart, tag=0)
    note: str = string(tag=1)
    numbers: list[int] | None = array(int32, nullable="0+", default=None, tag=2)
    names: list[str] = array(string, tag=9)


def test_unknown_tagged_fields_are_skipped() -> None:
    new = New(
        parts=[NewPart(number=1), NewPart(number=2, ordinal=7, owner=UUID(int=9))],
        extra=NewPart(number=3, ordinal=4),
        note="hello",
        numbers=[1, 2, 3],
        names=["a" * 200] * 3,
    )
    encoded = b"".join(encode(new, 0))
    assert decode(New, encoded, 0) == new
    old = Old(parts=[OldPart(number=1), OldPart(number=2)], note="hello")
    assert decode(Old, encoded, 0) == old


def test_tagged_fields_with_their_defaults_are_not_sent() -> None:
    assert b"".join(encode(New(), 0)) == b"\x01\0"
    assert decode(New, b"\x01\0", 0) == New()
    assert b"".join(encode(New(numbers=[]), 0)) == b"\x01\x01\x02\x01\x01"
    assert decode(New, b"\x01\x01\x02\x01\x01", 0).numbers == []


def test_a_tagged_field_must_take_up_its_size() -> None:
    with pytest.raises(MalformedMessage, match=r"New\.note does not take up its 3 bytes"):
        decode(New, b"\x01\x01\x01\x03\x02ab", 0)


def test_more_unknown_tags_than_a_byte_can_count() -> None:
    section = uvarint(300) + b"".join(uvarint(tag) + b"\x01x" for tag in range(100, 400))
    assert decode(Old, b"\x01" + section, 0) == Old()
    with pytest.raises(MalformedMessage):
        decode(Old, b"\x01" + uvarint(301) + section[2:], 0)


def test_a_message_shows_its_fields() -> None:
    assert repr(Old(note="x")) == "Old(parts=[], note='x')"
    assert Old(note="x") != New(note="x")


def test_structures_are_not_extended() -> None:
    with pytest.raises(TypeError, match="Wider extends a structure"):

        class Wider(OldPart):
            more: int = int32()


def pauses(steps: Generator[None, None, T]) -> tuple[int, T]:
    """The number of a generator's pauses, and its result."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize(
    ("topics", "partitions"), [(1, 50_000), (50_000, 1), (200, 250), (250, 200), (1, 10)]
)
def test_a_long_message_is_read_and_written_in_steps(topics: int, partitions: int) -> None:
    """Any array of the message may be the long one."""
    message = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=f"t{number}",
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=-1)
                    for index in range(partitions)
                ],
            )
            for number in range(topics)
        ]
    )
    encoded = b"".join(encode(message, 9))
    elements = topics + topics * partitions
    is_long = elements > SHORT_ELEMENTS_MAX
    for step in (
        lambda: decode_in_steps(ListOffsetsRequest, memoryview(encoded), 9, 0),
        lambda: encode_in_steps(message, 9, bytearray()),
    ):
        paused, _ = pauses(step())
        least = elements // (2 * STEP_ELEMENTS) if is_long else 0
        assert least <= paused <= 2 * elements // STEP_ELEMENTS
    assert pauses(decode_in_steps(ListOffsetsRequest, memoryview(encoded), 9, 0))[1] == message
    found = pauses(encode_in_steps(message, 9, bytearray(b"begun")))[1]
    assert b"".join(found) == b"begun" + encoded
    if is_long:
        with pytest.raises(LongMessage):
            decode_short(ListOffsetsRequest, memoryview(encoded), 9, 0)
        begun = bytearray(b"begun")
        with pytest.raises(LongMessage):
            encode_short(message, 9, begun)
        assert begun == b"begun"
    assert decode(ListOffsetsRequest, encoded, 9) == message


def test_unknown_tagged_fields_have_a_limit() -> None:
    """Elements of two bytes each, of which a frame may have fifty million."""
    fields = UNKNOWN_TAGS_MAX
    for count, is_refused in ((fields, False), (fields + 1, True)):
        sent = b"\x01\0" + uvarint(count) + b"\x05\0" * count
        if is_refused:
            with pytest.raises(MalformedMessage, match="array elements"):
                decode(DescribeGroupsRequest, sent, 5)
        else:
            assert decode(DescribeGroupsRequest, sent, 5) == DescribeGroupsRequest(groups=[])
