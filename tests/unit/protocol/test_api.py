"""The registry and the versions that are advertised."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from tidelog.protocol.api import (
    ADVERTISED,
    OWN_KEYS_FROM,
    ApiKey,
    OwnApiKey,
    register,
    registered,
    request_type,
    response_type,
)
from tidelog.protocol.error_codes import ErrorCode, error_name
from tidelog.protocol.errors import UnknownApi
from tidelog.protocol.fields import int32
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.fetch import FetchRequest, FetchResponse


def test_every_key_has_its_messages() -> None:
    assert [key for key in registered() if key < OWN_KEYS_FROM] == sorted(ApiKey)
    assert all(key >= OWN_KEYS_FROM for key in OwnApiKey)
    for key in (*ApiKey, *OwnApiKey):
        words = key.name.replace("_", "").lower()
        assert request_type(key).__name__.lower() == f"{words}request"
        assert response_type(key).__name__.lower() == f"{words}response"
        assert request_type(key).API_KEY == response_type(key).API_KEY == key
        assert request_type(key).FLEXIBLE == response_type(key).FLEXIBLE


def test_advertised_versions_have_schemas() -> None:
    for key, (lowest, highest) in ADVERTISED.items():
        assert lowest in request_type(key).VERSIONS
        assert highest in request_type(key).VERSIONS


def test_advertised_versions_reach_every_client() -> None:
    """The highest version of the oldest client of each API, and the floor of Java's 4.x."""
    oldest_client = {
        ApiKey.PRODUCE: 7,
        ApiKey.FETCH: 11,
        ApiKey.LIST_OFFSETS: 3,
        ApiKey.METADATA: 5,
        ApiKey.FIND_COORDINATOR: 1,
        ApiKey.API_VERSIONS: 0,
        ApiKey.CREATE_TOPICS: 3,
        ApiKey.DELETE_TOPICS: 1,
        ApiKey.DELETE_RECORDS: 1,
        ApiKey.CREATE_PARTITIONS: 1,
        ApiKey.INIT_PRODUCER_ID: 0,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
        ApiKey.DESCRIBE_CONFIGS: 1,
        ApiKey.ALTER_CONFIGS: 1,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    }
    for key, version in oldest_client.items():
        lowest, highest = ADVERTISED[key]
        assert lowest <= version <= highest
    assert ADVERTISED[ApiKey.PRODUCE][0] == 0


def test_own_requests_can_be_registered_once() -> None:
    class FlushRequest(
        Request["FlushResponse"], api_key=OWN_KEYS_FROM + 98, versions=(0, 0), flexible=0
    ):
        partition: int = int32()

    class FlushResponse(Response, api_key=OWN_KEYS_FROM + 98, versions=(0, 0), flexible=0):
        error_code: int = int32()

    with pytest.raises(ValueError, match="do not belong together"):
        register(FlushRequest, FetchResponse)
    with pytest.raises(UnknownApi, match="20098"):
        request_type(OWN_KEYS_FROM + 98)
    with pytest.raises(ValueError, match="key 1 of FetchRequest"):
        register(FetchRequest, FetchResponse)


def test_error_codes_are_kafkas() -> None:
    theirs = {code.name.upper(): int(code) for code in KioErrorCode}
    assert {code.name: int(code) for code in ErrorCode} == theirs
    for code in KioErrorCode:
        assert ErrorCode(code).retriable == code.retriable


def test_error_names_survive_codes_that_are_not_known() -> None:
    assert error_name(6) == "NOT_LEADER_OR_FOLLOWER"
    assert error_name(9999) == "error 9999"
