"""URLs: which store each opens, the errors of wrong ones, and hidden credentials."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.unit.storage.scripted_server import ScriptedServer, answer, stored
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.s3_servers import S3Server
from tidelog.storage.object_store import AccessDenied, ObjectStore, StoreMisconfigured
from tidelog.storage.stores.location import open_reader, open_store
from tidelog.storage.stores.metered import StoreStatistics
from tidelog.storage.stores.s3.s3_address import DEFAULT_REGION, S3Address, parse_s3_url

ASSUMED = """\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult>
    <Credentials>
      <AccessKeyId>ROLEKEY</AccessKeyId>
      <SecretAccessKey>a-secret</SecretAccessKey>
      <SessionToken>a-token</SessionToken>
      <Expiration>2999-01-01T00:00:00Z</Expiration>
    </Credentials>
  </AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>
"""
CREDENTIALS = "access_key_id=AKIDEXAMPLE&secret_access_key=s3cr3t"


@pytest.fixture(autouse=True)
def no_aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the machine's AWS environment and profiles."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def opened(url: str) -> ObjectStore:
    return open_store(url, SystemClock(), SeededEntropy(1))


def round_trip(store: ObjectStore, key: str = "key") -> bytes:
    async def story() -> bytes:
        await store.put(key, b"value")
        data = bytes((await store.get(key)).data)
        await store.close()
        return data

    return asyncio.run(story())


def put(url: str) -> None:
    store = opened(url)
    asyncio.run(store.put("key", b"x"))


def signed_by_the_role(store: ScriptedServer) -> None:
    (request,) = store.requests
    assert "Credential=ROLEKEY/" in request
    assert "x-amz-security-token: a-token" in request


# --- file and memory ---


def test_a_file_url_names_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "with space"
    store = opened(directory.as_uri())
    assert store.url == directory.as_uri()
    assert round_trip(store) == b"value"
    assert (directory / "key").read_bytes() == b"value"


def test_a_memory_url_names_one_store_in_the_process() -> None:
    assert round_trip(opened("memory://one")) == b"value"

    async def held(url: str) -> list[str]:
        return [meta.key async for meta in opened(url).list()]

    assert asyncio.run(held("memory://one")) == ["key"]
    assert asyncio.run(held("memory://other")) == []
    assert opened("memory://one").url == "memory://one"


def test_requests_are_counted() -> None:
    statistics = StoreStatistics()
    store = open_store("memory://counted", SystemClock(), SeededEntropy(1), statistics=statistics)
    round_trip(store)
    assert statistics.put.outcomes == {"ok": 1}
    assert statistics.get.bytes_total == 5


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://relative/dir", "three slashes"),
        ("file://", "three slashes"),
        ("file:///dir?x=s3cr3t", "no options"),
        ("file:///dir#1", "a # in a directory's name is written %23"),
        ("/var/tidelog", "is not a URL; a directory's is file:///path"),
        ("bucket?secret_access_key=s3cr3t", "is not a URL"),
        ("", "is not a URL"),
        ("gs://bucket/x?token=s3cr3t", "no store is known by gs://"),
        ("http://user:s3cr3t@host/x", "no store is known by http://"),
        ("s3://", "s3://bucket/prefix"),
        ("s3://user:s3cr3t@bucket/prefix", "do not belong before the bucket"),
        (f"s3://bucket?{CREDENTIALS}&endpiont=http://x", "unknown option 'endpiont'"),
        ("s3://bucket?secret_access_key=s3cr3t", "are given together"),
        (f"s3://bucket?{CREDENTIALS}&region=", "option region is empty"),
        (f"s3://bucket?{CREDENTIALS}&region=a&region=b", "given twice"),
        (f"s3://bucket?{CREDENTIALS}&endpoint=localhost:9000", "is not http://host:port"),
        (f"s3://bucket?{CREDENTIALS}&endpoint=http://h/path", "must not have a path"),
        (f"s3://bucket?{CREDENTIALS}&endpoint=http://u:s3cr3t@h", "credentials do not belong"),
        (f"s3://bucket?{CREDENTIALS}&path_style=yes", "true or false"),
        (f"s3://bucket?{CREDENTIALS}&request_timeout_ms=0", "milliseconds in"),
        (f"s3://bucket?{CREDENTIALS}&connect_timeout_ms=soon", "milliseconds in"),
        (f"s3://bucket/../x?{CREDENTIALS}", "empty or relative segment"),
        (f"s3://bucket/a#b?{CREDENTIALS}", "written %23"),
        ("s3://bucket?access_key_id=a&secret_access_key=s3cr3t#&endpoint=http://h", "written %23"),
        ("s3://bucket?profile=nobody", "nobody"),
    ],
)
def test_a_wrong_url_is_explained_without_its_secrets(url: str, says: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        opened(url)
    assert says in str(caught.value)
    assert "s3cr3t" not in f"{caught.value} {caught.value.__cause__}"


# --- S3 addresses ---


def test_options_of_the_url() -> None:
    address = parse_s3_url(
        f"s3://bucket/a/b/?{CREDENTIALS}&session_token=t0k3n&endpoint=https://s3.local:9000/"
        "&region=eu-west-3&sign_payload=true&bulk_delete=false&connect_timeout_ms=100"
        "&request_timeout_ms=200"
    )
    assert address == S3Address(
        bucket="bucket",
        prefix="a/b",
        endpoint="https://s3.local:9000",
        region="eu-west-3",
        access_key_id="AKIDEXAMPLE",
        secret_access_key="s3cr3t",
        session_token="t0k3n",
        path_style=True,
        sign_payload=True,
        bulk_delete=False,
        connect_timeout_ms=100,
        request_timeout_ms=200,
    )
    assert address.url == "s3://bucket/a/b?endpoint=https://s3.local:9000&region=eu-west-3"
    for secret in ("AKIDEXAMPLE", "s3cr3t", "t0k3n"):
        assert secret not in f"{address} {address!r} {address.url}"
    assert not address.allow_http


def test_a_plus_in_a_secret_may_be_escaped() -> None:
    address = parse_s3_url("s3://b?access_key_id=A&secret_access_key=a%2Bb%2Fc%3D")
    assert address.secret_access_key == "a+b/c="


@pytest.mark.parametrize("prefix", ["a b", "a%20b", "a+b=c", "ä", "a:b,@(c)"])
def test_the_url_that_is_shown_names_the_same_prefix(prefix: str) -> None:
    address = parse_s3_url(f"s3://bucket/{prefix}?{CREDENTIALS}&endpoint=https://s3.local:9000")
    assert address.prefix == prefix
    assert parse_s3_url(address.url).prefix == prefix


def test_aws_itself_needs_no_options() -> None:
    address = parse_s3_url("s3://bucket")
    assert (address.endpoint, address.region, address.path_style) == (None, DEFAULT_REGION, False)
    assert address.url == "s3://bucket"


def test_the_environment_and_the_profile_fill_the_gaps_of_a_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-north-1\nendpoint_url = http://profile:1\n"
        "[profile other]\nregion = sa-east-1\nservices = mine\n"
        "[services mine]\ns3 =\n  endpoint_url = http://services:2\n"
    )
    address = parse_s3_url("s3://b")
    assert (address.region, address.endpoint) == ("eu-north-1", "http://profile:1")
    address = parse_s3_url("s3://b?profile=other")
    assert (address.region, address.endpoint) == ("sa-east-1", "http://services:2")
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert parse_s3_url("s3://b").region == "sa-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://environment:3")
    address = parse_s3_url("s3://b")
    assert (address.region, address.endpoint) == ("us-west-1", "http://environment:3")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://environment:4")
    address = parse_s3_url("s3://b")
    assert (address.region, address.endpoint) == ("us-west-2", "http://environment:4")
    address = parse_s3_url("s3://b?region=ap-south-1&endpoint=http://url:5")
    assert (address.region, address.endpoint) == ("ap-south-1", "http://url:5")
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert parse_s3_url("s3://b").endpoint is None


def test_no_credentials_anywhere_is_said_with_the_remedy() -> None:
    with pytest.raises(AccessDenied, match="no AWS credentials were found; set AWS_ACCESS_KEY_ID"):
        opened("s3://bucket")


def test_the_aws_environment_is_enough(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    store = opened(f"s3://{moto.bucket}/environment")
    assert moto.secret_key not in store.url
    assert round_trip(store) == b"value"


def test_the_url_wins_over_the_environment(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_SESSION_TOKEN": "of another identity",
        "AWS_BUCKET": "another",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_CONDITIONAL_PUT": "disabled",
        "AWS_ALLOW_HTTP": "false",
    }.items():
        monkeypatch.setenv(name, value)
    assert round_trip(opened(moto.url_of(moto.bucket, "url-wins"))) == b"value"


def test_a_profile_s_credentials_are_used(
    moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = {moto.access_key}\n"
        f"aws_secret_access_key = {moto.secret_key}\n"
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    assert round_trip(opened(f"s3://{moto.bucket}/profile?profile=mine")) == b"value"


# --- readers ---


def test_a_reader_opens_the_url_of_a_store(tmp_path: Path) -> None:
    round_trip(opened(tmp_path.as_uri()))
    reader = open_reader(tmp_path.as_uri(), SystemClock(), SeededEntropy(1))

    async def read() -> bytes:
        return bytes((await reader.get("key")).data)

    assert asyncio.run(read()) == b"value"


def test_a_reader_of_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="nosuch://bucket/x"):
        open_reader("nosuch://u:s3cr3t@bucket/x?y=s3cr3t", SystemClock(), SeededEntropy(1))


def test_a_missing_bucket_is_told_at_the_first_request(moto: S3Server) -> None:
    with pytest.raises(StoreMisconfigured, match="tidelog bucket create"):
        round_trip(opened(moto.url_of("no-such-bucket")))


def test_a_role_s_credentials_are_used_and_the_url_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The credentials of a container's role, from the address in the environment."""
    role = {
        "AccessKeyId": "ROLEKEY",
        "SecretAccessKey": "a-secret",
        "Token": "a-token",
        "Expiration": "2999-01-01T00:00:00Z",
    }
    given = answer(200, json.dumps(role).encode(), content_type="application/json")
    with ScriptedServer([given] * 4) as roles, ScriptedServer([stored()]) as store:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{roles.endpoint}/role")
        put(f"s3://bucket/prefix?endpoint={store.endpoint}&region=r")
        signed_by_the_role(store)
    assert roles.requests[0].startswith("GET /role")


def test_a_service_account_s_token_buys_a_role_s_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Web identity, as in EKS: the store exchanges the token of a file for credentials."""
    (tmp_path / "token").write_text("token-of-the-service-account")
    given = answer(200, ASSUMED.encode(), content_type="text/xml")
    with ScriptedServer([given] * 4) as tokens, ScriptedServer([stored()]) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", tokens.endpoint)
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/broker")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        put(f"s3://bucket/prefix?endpoint={store.endpoint}&region=eu-west-1")
        signed_by_the_role(store)
        assert tokens.requests[0].startswith("POST /")


def test_an_instance_s_role_is_asked_for_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2's metadata service, version 2: a token first, then the role, then its credentials."""
    role = {
        "Code": "Success",
        "LastUpdated": "2020-01-01T00:00:00Z",
        "AccessKeyId": "ROLEKEY",
        "SecretAccessKey": "a-secret",
        "Token": "a-token",
        "Expiration": "2999-01-01T00:00:00Z",
    }
    answers = [
        answer(200, b"metadata-token"),
        answer(200, b"broker-role"),
        answer(200, json.dumps(role).encode(), content_type="application/json"),
    ]
    with ScriptedServer(answers * 4) as metadata, ScriptedServer([stored()]) as store:
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        put(f"s3://bucket/prefix?endpoint={store.endpoint}&region=r")
        signed_by_the_role(store)
        asked = [each.split(" HTTP/")[0] for each in metadata.requests[:3]]
    folder = "/latest/meta-data/iam/security-credentials/"
    assert asked == ["PUT /latest/api/token", f"GET {folder}", f"GET {folder}broker-role"]
