"""The outcome of a request by S3's answers and silences, each on a real socket, through obstore."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.storage.scripted_server import (
    Act,
    Answer,
    Break,
    Hang,
    ScriptedServer,
    answer,
    error,
    stored,
)
from tidelog.storage.object_store import (
    AccessDenied,
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    PreconditionFailed,
    StoreError,
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
)
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import parse_s3_url

CREATE, MATCH = IfAbsent(), IfMatch('"e0"')
BODY = b"b" * 100_000
LISTING = "<ListBucketResult><IsTruncated>false</IsTruncated>{}</ListBucketResult>"
ENTRY = (
    "<Contents><Key>prefix/{}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
    "<LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
)


def ask(
    script: list[Act], request: Callable[[S3Store], Awaitable[object]]
) -> tuple[object, list[str]]:
    """The outcome of one request, and the requests that were really sent."""

    async def main(server: ScriptedServer) -> object:
        store = S3Store(parse_s3_url(server.url))
        try:
            return await request(store)
        except StoreError as raised:
            return raised

    with ScriptedServer(script) as server:
        outcome = asyncio.run(main(server))
    return outcome, server.requests


def put(condition: Condition | None) -> Callable[[S3Store], Awaitable[object]]:
    return lambda store: store.put("log/7", BODY, condition)


def listed(store: S3Store) -> Awaitable[object]:
    async def keys() -> list[str]:
        return [meta.key async for meta in store.list("log/")]

    return keys()


READS: dict[str, Callable[[S3Store], Awaitable[object]]] = {
    "get": lambda store: store.get("log/7"),
    "head": lambda store: store.head("log/7"),
    "list": listed,
}

EITHER_CONDITION = [CREATE, MATCH]
ANY = [None, CREATE, MATCH]


@pytest.mark.parametrize(
    ("conditions", "act", "expected", "says"),
    [
        (EITHER_CONDITION, error(412, "PreconditionFailed"), PreconditionFailed, ""),
        ([None], error(412, "PreconditionFailed"), StoreMisconfigured, "412"),
        (ANY, error(409, "ConditionalRequestConflict"), StoreNotApplied, "put off"),
        (ANY, error(409, "OperationAborted"), StoreNotApplied, "put off"),
        (ANY, error(429, "TooManyRequests"), StoreNotApplied, "put off"),
        (ANY, error(400, "RequestTimeout"), StoreNotApplied, "put off"),
        (ANY, error(403, "AccessDenied"), AccessDenied, "check the credentials"),
        (ANY, error(403, "SignatureDoesNotMatch"), AccessDenied, "SignatureDoesNotMatch"),
        (ANY, error(403, "RequestTimeTooSkewed"), AccessDenied, "RequestTimeTooSkewed"),
        (ANY, error(400, "ExpiredToken"), AccessDenied, "ExpiredToken"),
        (ANY, answer(401), AccessDenied, "401"),
        (ANY, error(404, "NoSuchBucket"), StoreMisconfigured, "tidelog bucket create"),
        ([MATCH], error(404, "NoSuchKey"), PreconditionFailed, "not the expected version"),
        ([None, CREATE], error(404, "NoSuchKey"), StoreMisconfigured, "check the URL"),
        ([None, CREATE], answer(404), StoreMisconfigured, "check the URL"),
        (ANY, answer(301), StoreMisconfigured, "region"),
        (ANY, error(400, "AuthorizationHeaderMalformed"), StoreMisconfigured, "region"),
        (ANY, error(400, "EntityTooLarge"), StoreMisconfigured, "EntityTooLarge"),
        (ANY, error(501, "NotImplemented"), StoreMisconfigured, "cannot do this put"),
        (ANY, answer(200), StoreMisconfigured, "without an ETag"),
        (ANY, error(500, "InternalError"), StoreOutcomeUnknown, "may or may not be applied"),
        (ANY, error(503, "SlowDown"), StoreOutcomeUnknown, "SlowDown"),
        # MinIO gives a lock that it waited too long for this code and status.
        (ANY, error(503, "RequestTimeout"), StoreOutcomeUnknown, "RequestTimeout"),
        (ANY, error(503, "TooManyRequests"), StoreOutcomeUnknown, "TooManyRequests"),
        (ANY, answer(502, b"<html>proxy</html>"), StoreOutcomeUnknown, "502"),
        (ANY, answer(504), StoreOutcomeUnknown, "504"),
        (ANY, Break(), StoreOutcomeUnknown, "may or may not be applied"),
        (ANY, Break(reset=True), StoreOutcomeUnknown, "may or may not be applied"),
        (ANY, Break(read_body=False), StoreOutcomeUnknown, "may or may not be applied"),
        (ANY, Break(data=b"HTTP/1.1 200 OK\r\neta"), StoreOutcomeUnknown, "may or may not"),
        (ANY, Answer(b"no HTTP at all\r\n\r\n"), StoreOutcomeUnknown, "may or may not"),
        ([CREATE], Hang(), StoreOutcomeUnknown, "no answer in time"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, Answer | Break | Hang) else None,
)
def test_a_failed_put_tells_its_outcome(
    conditions: list[Condition | None], act: Act, expected: type[StoreError], says: str
) -> None:
    for condition in conditions:
        # The second answer is for a retry, which must not happen.
        outcome, requests = ask([act, stored()], put(condition))
        assert type(outcome) is expected, (condition, outcome)
        assert says in str(outcome)
        assert outcome.key == "log/7"
        assert len(requests) == 1, "sent once"
        assert "SECRETKEY" not in f"{outcome} {outcome!r} {outcome.__cause__}"
        assert "KEYID" not in f"{outcome}"


@pytest.mark.parametrize(
    ("act", "expected", "says"),
    [
        (error(403, "AccessDenied"), AccessDenied, "check the credentials"),
        (answer(401), AccessDenied, "check the credentials"),
        (error(500, "InternalError"), StoreNotApplied, "500"),
        (error(503, "SlowDown"), StoreNotApplied, "503"),
        (error(409, "OperationAborted"), StoreNotApplied, "409"),
        (answer(301), StoreMisconfigured, "region"),
        (Break(), StoreNotApplied, "failed"),
        (Break(reset=True), StoreNotApplied, "failed"),
        (Hang(), StoreNotApplied, "no answer in time"),
    ],
    ids=str,
)
@pytest.mark.parametrize("read", READS)
def test_a_read_changes_nothing_and_so_never_ends_unknown(
    act: Act, expected: type[StoreError], says: str, read: str
) -> None:
    outcome, requests = ask([act, answer(200)], READS[read])
    assert type(outcome) is expected, outcome
    assert says in str(outcome)
    assert len(requests) == 1


@pytest.mark.parametrize("read", ["get", "list"])
def test_a_missing_bucket_is_told_from_a_missing_object(read: str) -> None:
    outcome, _ = ask([error(404, "NoSuchBucket")], READS[read])
    assert isinstance(outcome, StoreMisconfigured)
    assert "bucket bucket does not exist" in str(outcome)


@pytest.mark.parametrize("read", ["get", "head"])
def test_a_missing_object_is_named(read: str) -> None:
    outcome, _ = ask([answer(404) if read == "head" else error(404, "NoSuchKey")], READS[read])
    assert isinstance(outcome, ObjectNotFound)
    assert outcome.key == "log/7"


def test_a_body_that_breaks_off_is_no_object() -> None:
    head = b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\netag: "e"\r\n'
    dated = head + b"last-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\nonly this"
    outcome, _ = ask([Break(data=dated)], READS["get"])
    assert isinstance(outcome, StoreNotApplied)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (answer(204), type(None)),
        (error(404, "NoSuchKey"), type(None)),
        (error(404, "NoSuchBucket"), StoreMisconfigured),
        (error(403, "AccessDenied"), AccessDenied),
        (error(500, "InternalError"), StoreOutcomeUnknown),
        (Break(), StoreOutcomeUnknown),
    ],
)
def test_a_delete_tells_its_outcome(act: Act, expected: type) -> None:
    outcome, requests = ask([act, answer(204)], lambda store: store.delete("log/7"))
    assert type(outcome) is expected
    assert requests[0].startswith("DELETE /bucket/prefix/log/7 HTTP/1.1")
    assert len(requests) == 1


def some_failed(*codes: str) -> Act:
    """The answer to a DeleteObjects of which some keys were refused."""
    failed = "".join(
        f"<Error><Key>prefix/log/7</Key><Code>{code}</Code><Message>no</Message></Error>"
        for code in codes
    )
    deleted = "<Deleted><Key>prefix/log/8</Key></Deleted>"
    body = f"<?xml version='1.0'?><DeleteResult>{deleted}{failed}</DeleteResult>"
    return answer(200, body.encode(), content_type="application/xml")


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (some_failed(), type(None)),
        (some_failed("AccessDenied"), AccessDenied),
        (some_failed("SlowDown"), StoreOutcomeUnknown),
        (error(403, "AccessDenied"), AccessDenied),
        (error(404, "NoSuchBucket"), StoreMisconfigured),
        (error(501, "NotImplemented"), StoreMisconfigured),
        (error(503, "SlowDown"), StoreOutcomeUnknown),
        (Break(), StoreOutcomeUnknown),
    ],
)
def test_one_request_deletes_many_objects_and_tells_the_outcome(act: Act, expected: type) -> None:
    outcome, requests = ask([act, some_failed()], lambda store: store.delete("log/7", "log/8"))
    assert type(outcome) is expected, outcome
    assert requests[0].startswith("POST /bucket?delete HTTP/1.1")
    assert len(requests) == 1


def test_a_store_without_bulk_deletes_gets_a_request_for_each() -> None:
    async def deleted(url: str) -> None:
        await S3Store(parse_s3_url(f"{url}&bulk_delete=false")).delete("log/7", "log/8")

    with ScriptedServer([answer(204), answer(204)]) as server:
        asyncio.run(deleted(server.url))
        assert sorted(head.partition(" HTTP")[0] for head in server.requests) == [
            "DELETE /bucket/prefix/log/7",
            "DELETE /bucket/prefix/log/8",
        ]


def test_a_refused_connection_means_not_applied() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    url = f"s3://bucket?endpoint=http://127.0.0.1:{port}&access_key_id=K&secret_access_key=S"

    async def outcome(address: str) -> None:
        await S3Store(parse_s3_url(address)).put("log/7", BODY, CREATE)

    with pytest.raises(StoreNotApplied, match="cannot be reached"):
        asyncio.run(outcome(url))
    unknown_host = url.replace("127.0.0.1", "no-such-host.invalid")
    with pytest.raises(StoreNotApplied, match="cannot be reached"):
        asyncio.run(outcome(unknown_host))


def test_a_connection_that_is_not_accepted_in_time_means_not_applied() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        url = (
            f"s3://bucket?endpoint=http://127.0.0.1:{port}&connect_timeout_ms=200"
            "&access_key_id=K&secret_access_key=S"
        )

        async def outcome() -> None:
            await S3Store(parse_s3_url(url)).put("log/7", BODY, CREATE)

        with pytest.raises(StoreNotApplied, match="no answer in time"):
            asyncio.run(outcome())
        for one in waiting:
            one.close()


def test_a_kept_connection_that_breaks_is_not_used_to_repeat_the_put() -> None:
    async def twice(store: S3Store) -> object:
        await store.put("log/6", BODY, CREATE)
        return await store.put("log/7", BODY, CREATE)

    outcome, requests = ask([stored(), Break(), stored()], twice)
    assert isinstance(outcome, StoreOutcomeUnknown)
    assert len(requests) == 2


def test_a_put_is_one_request_with_signed_headers_and_its_condition() -> None:
    outcome, (request,) = ask([stored('"new"')], put(CREATE))
    assert outcome == '"new"'
    assert request.startswith("PUT /bucket/prefix/log/7 HTTP/1.1\r\n")
    assert "if-none-match: *" in request
    assert "x-amz-content-sha256: UNSIGNED-PAYLOAD" in request
    assert "Credential=KEYID/" in request
    assert "/eu-west-1/s3/aws4_request" in request
    _, (request,) = ask([stored()], put(MATCH))
    assert 'if-match: "e0"' in request
    _, (request,) = ask([stored()], put(None))
    assert "if-" not in request.replace("if-modified", "")


def test_large_objects_are_single_puts() -> None:
    async def large(store: S3Store) -> object:
        return await store.put("log/7", [bytes(9 << 20), bytes(9 << 20)])

    outcome, requests = ask([stored()], large)
    assert outcome == '"e1"'
    assert len(requests) == 1
    assert f"content-length: {18 << 20}" in requests[0]


def test_a_store_that_answers_a_range_wrongly_is_refused() -> None:
    whole = answer(200, b"0123456789", etag='"e"', last_modified="Wed, 21 Oct 2015 07:28:00 GMT")
    head = Answer(whole.data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    outcome, _ = ask([whole, head], lambda store: store.get("log/7", ByteRange(2, 3)))
    assert isinstance(outcome, StoreMisconfigured)
    assert "does not answer ByteRange(start=2, length=3)" in str(outcome)


@pytest.mark.parametrize(
    ("names", "says"),
    [(["log/2", "log/1"], "does not list in key order"), (["log/../x"], "not Tidelog's")],
)
def test_a_listing_that_cannot_be_trusted_is_refused(names: list[str], says: str) -> None:
    body = LISTING.format("".join(map(ENTRY.format, names))).encode()
    outcome, _ = ask([answer(200, body)], listed)
    assert isinstance(outcome, StoreMisconfigured)
    assert says in str(outcome)
