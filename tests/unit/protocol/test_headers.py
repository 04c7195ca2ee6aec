"""Which header a message gets, and how a broker answers a version that it does not know."""

from __future__ import annotations

import io

import pytest
from kio.schema.request_header.v1 import RequestHeader as HeaderV1
from kio.schema.request_header.v2 import RequestHeader as HeaderV2
from kio.serial import entity_writer

from tidelog.protocol.api import ApiKey
from tidelog.protocol.codec import decode
from tidelog.protocol.errors import MalformedMessage, UnknownApi
from tidelog.protocol.headers import (
    decode_correlation_id,
    decode_request_header,
    encode_request,
    encode_response,
    response_body_position,
)
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest, MetadataResponse


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("client_id", [None, "", "klient-ü"])
def test_request_headers_are_kafkas(version: int, client_id: str | None) -> None:
    header_type = HeaderV2 if version >= 9 else HeaderV1
    expected = io.BytesIO()
    entity_writer(header_type)(  # type: ignore[type-var]
        expected,
        header_type(  # type: ignore[arg-type]
            request_api_key=3,  # type: ignore[arg-type]
            request_api_version=version,  # type: ignore[arg-type]
            correlation_id=77,  # type: ignore[arg-type]
            client_id=client_id,
        ),
    )
    request = MetadataRequest(topics=None)
    frame = b"".join(encode_request(request, version, 77, client_id))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:].startswith(expected.getvalue())
    header = decode_request_header(memoryview(frame)[4:])
    assert header == (3, version, 77, client_id, len(expected.getvalue()))
    assert decode(MetadataRequest, frame[4:], version, header.body_position) == request


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    frame = b"\0\x03\0\x09\0\0\0\x4d\xff\xff\x01\x05\x02ab\0"
    assert decode_request_header(memoryview(frame)).body_position == len(frame) - 1


@pytest.mark.parametrize("version", [8, 9])
def test_response_headers_are_flexible_with_their_message(version: int) -> None:
    response = MetadataResponse(controller_id=5)
    frame = memoryview(b"".join(encode_response(response, version, 77)))[4:]
    assert decode_correlation_id(frame) == 77
    position = response_body_position(frame, MetadataResponse, version)
    assert position == (5 if version == 9 else 4)
    assert decode(MetadataResponse, frame, version, position) == response


@pytest.mark.parametrize("version", [0, 3, 4])
def test_the_header_of_api_versions_is_never_flexible(version: int) -> None:
    response = ApiVersionsResponse(error_code=0)
    frame = memoryview(b"".join(encode_response(response, version, 77)))[4:]
    assert response_body_position(frame, ApiVersionsResponse, version) == 4
    assert decode(ApiVersionsResponse, frame, version, 4) == response


def test_a_broker_can_answer_a_version_from_the_future() -> None:
    request = ApiVersionsRequest(client_software_name="newer", client_software_version="9")
    frame = bytearray(b"".join(encode_request(request, 4, 12, "c")))[4:]
    frame[2:4] = (99).to_bytes(2, "big")
    header = decode_request_header(memoryview(frame))
    assert header.api_version == 99
    assert header.correlation_id == 12
    assert header.api_version not in ApiVersionsRequest.VERSIONS
    answer = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
    )
    sent = b"".join(encode_response(answer, 0, header.correlation_id))
    assert sent[4:] == b"\0\0\0\x0c\0\x23\0\0\0\x01\0\x12\0\0\0\x04"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x03\0\x09\0\0\0",
        b"\0\x03\0\x09\0\0\0\x4d\0\x05ab",
        b"\0\x03\0\x09\0\0\0\x4d\xff\xfe\0",
        b"\0\x03\0\x09\0\0\0\x4d\0\x01\xff\0",
        b"\0\x03\0\x09\0\0\0\x4d\xff\xff\x01\x05\x7f",
    ],
)
def test_malformed_headers_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match="request header"):
        decode_request_header(memoryview(frame))


def test_an_unknown_api_is_named() -> None:
    with pytest.raises(UnknownApi, match="key 999"):
        decode_request_header(memoryview(b"\x03\xe7\0\0\0\0\0\x01\xff\xff"))


def test_malformed_response_headers_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="3 bytes"):
        decode_correlation_id(memoryview(b"abc"))
    with pytest.raises(MalformedMessage, match="response header"):
        response_body_position(memoryview(b"\0\0\0\x01"), MetadataResponse, 9)


def test_keys_and_classes_know_each_other() -> None:
    request: type[Request[Response]] = ApiVersionsRequest
    assert request.API_KEY == ApiKey.API_VERSIONS
