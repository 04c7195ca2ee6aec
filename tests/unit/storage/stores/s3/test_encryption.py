"""Server-side encryption: headers, wrong combinations, and keys that stay secret."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.kept_secrets import keep
from tests.unit.storage.scripted_server import Act, ScriptedServer, answer, stored
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.s3_servers import S3Server
from tidelog.spark_source import s3a_options
from tidelog.storage.object_store import ByteRange, IfAbsent, IfMatch
from tidelog.storage.stores.location import open_store
from tidelog.storage.stores.probe import probe
from tidelog.storage.stores.s3.bucket_admin import check_bucket
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import parse_s3_url

KEY = bytes(range(32))
KEY_TEXT = keep(base64.b64encode(KEY).decode(), "the customer's key")
KEY_MD5 = base64.b64encode(hashlib.md5(KEY, usedforsecurity=False).digest()).decode()
KMS_KEY = "arn:aws:kms:eu-west-1:1:key/2"
VARIABLE = "CUSTOMER_KEY"
CUSTOMER = f"sse=c&sse_customer_key_env={VARIABLE}"
WHOLE = answer(200, b"data", etag='"e"', last_modified="Wed, 21 Oct 2015 07:28:00 GMT")
PART = answer(
    206,
    b"at",
    etag='"e"',
    last_modified="Wed, 21 Oct 2015 07:28:00 GMT",
    content_range="bytes 1-2/4",
)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY_TEXT)


def encryption_headers(
    options: str, script: list[Act], request: Callable[[S3Store], Awaitable[object]]
) -> list[dict[str, str]]:
    """The headers about encryption of each request."""

    async def ask(url: str) -> None:
        await request(S3Store(parse_s3_url(f"{url}&{options}")))

    with ScriptedServer(script) as server:
        asyncio.run(ask(server.url))
    return [
        {
            name.removeprefix("x-amz-server-side-"): value
            for name, _, value in (line.partition(": ") for line in head.split("\r\n"))
            if name.startswith("x-amz-server-side-")
        }
        for head in server.requests
    ]


@pytest.mark.parametrize("condition", [None, IfAbsent(), IfMatch('"e"')])
@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ("sse=s3", {"encryption": "AES256"}),
        ("sse=kms", {"encryption": "aws:kms"}),
        (
            f"sse=kms&sse_kms_key_id={KMS_KEY}",
            {"encryption": "aws:kms", "encryption-aws-kms-key-id": KMS_KEY},
        ),
        (
            CUSTOMER,
            {
                "encryption-customer-algorithm": "AES256",
                "encryption-customer-key": KEY_TEXT,
                "encryption-customer-key-md5": KEY_MD5,
            },
        ),
        ("sign_payload=false", {}),
    ],
)
def test_every_put_asks_for_encryption(
    options: str, headers: dict[str, str], condition: IfAbsent | IfMatch | None
) -> None:
    found = encryption_headers(
        options, [stored()], lambda store: store.put("log/7", b"x", condition)
    )
    assert found == [headers]


async def reads(store: S3Store) -> None:
    await store.get("log/7")
    await store.get("log/7", ByteRange(1, 2))
    await store.head("log/7")


def test_every_read_carries_the_customers_key_which_no_other_kind_needs() -> None:
    script = [WHOLE, PART, WHOLE]
    carried = encryption_headers(CUSTOMER, [*script], reads)
    assert [each.get("encryption-customer-key") for each in carried] == [KEY_TEXT] * 3
    assert [each.get("encryption-customer-key-md5") for each in carried] == [KEY_MD5] * 3
    assert encryption_headers("sse=kms", [*script], reads) == [{}, {}, {}]


def test_the_key_comes_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY_TEXT}\n")
    address = parse_s3_url(f"s3://b?sse=c&sse_customer_key_file={file}")
    assert address.encryption is not None
    assert address.encryption.customer_key == KEY


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("sse=aes", "sse is one of s3, kms, c, not 'aes'"),
        ("sse_kms_key_id=1", "sse_kms_key_id needs sse=kms"),
        ("sse=s3&sse_kms_key_id=1", "sse_kms_key_id needs sse=kms"),
        (f"sse_customer_key_env={VARIABLE}", "sse_customer_key_env needs sse=c"),
        (f"sse=kms&sse_customer_key_env={VARIABLE}", "sse_customer_key_env needs sse=c"),
        ("sse=c", "needs sse_customer_key_file or sse_customer_key_env, and not both"),
        (f"{CUSTOMER}&sse_customer_key_file=/x", "and not both"),
        (f"{CUSTOMER}&sse_kms_key_id=1", "sse_kms_key_id needs sse=kms"),
        ("sse=c&sse_customer_key_env=NOT_SET", "the variable NOT_SET is not set"),
        ("sse=c&sse_customer_key_file=/no/such/file", "/no/such/file: No such file"),
        (f"{CUSTOMER}&endpoint=http://store.example.com", "is plain HTTP"),
        ("sse=c&sse_customer_key=AAAA", "a key does not belong in a URL"),
    ],
)
def test_a_wrong_combination_is_named(options: str, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says) as refused:
        parse_s3_url(f"s3://bucket/prefix?{options}")
    assert "AAAA" not in str(refused.value)


@pytest.mark.parametrize("text", ["short", KEY_TEXT[:-8], f"{KEY_TEXT}{KEY_TEXT}", "\x00" * 32])
def test_a_key_of_another_form_is_named_and_not_repeated(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(InvalidConfiguration, match="32 bytes as base64") as refused:
        parse_s3_url(f"s3://bucket?sse=c&sse_customer_key_file={file}")
    assert text not in str(refused.value)


def test_no_text_shows_the_key() -> None:
    credentials = "access_key_id=a&secret_access_key=b"
    address = parse_s3_url(f"s3://bucket/prefix?region=r&{credentials}&{CUSTOMER}")
    for text in (repr(address), address.url, repr(address.encryption), S3Store(address).url):
        assert KEY_TEXT not in text
        assert repr(KEY) not in text


@pytest.mark.parametrize(
    ("options", "kind", "key_id"),
    [("sse=s3", "AES256", None), (f"sse=kms&sse_kms_key_id={KMS_KEY}", "aws:kms", KMS_KEY)],
)
def test_a_store_tells_how_it_encrypted(
    moto: S3Server, options: str, kind: str, key_id: str | None
) -> None:
    url = f"{moto.url_of(moto.bucket, f'encrypted-{kind[:3]}')}&{options}"
    store = open_store(url, SystemClock(), SeededEntropy(1))

    async def write() -> None:
        await probe(store, SeededEntropy(1))
        await store.put("log/7", b"x", IfAbsent())
        assert bytes((await store.get("log/7")).data) == b"x"

    asyncio.run(write())
    head = moto.client().head_object(Bucket=moto.bucket, Key=f"encrypted-{kind[:3]}/log/7")
    assert head["ServerSideEncryption"] == kind
    assert head.get("SSEKMSKeyId") == key_id
    assert check_bucket(url).ok


def test_s3a_gets_the_customer_s_key_and_no_other() -> None:
    options = {"sse": "c", "sse_customer_key_env": VARIABLE}
    found = s3a_options("s3://bucket/prefix", **options)
    assert found["fs.s3a.bucket.bucket.encryption.algorithm"] == "SSE-C"
    assert found["fs.s3a.bucket.bucket.encryption.key"] == KEY_TEXT
    assert not [name for name in s3a_options("s3://bucket/prefix", sse="kms") if "encr" in name]
