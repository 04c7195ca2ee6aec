"""The address of an S3 bucket and its credentials, from `s3://bucket/prefix?...` and the AWS
environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import boto3
import botocore.exceptions

from tidelog.errors import InvalidConfiguration
from tidelog.storage.object_store import validate_key
from tidelog.storage.stores.s3.encryption import (
    ENCRYPTION_OPTIONS,
    Encryption,
    parse_encryption,
)

DEFAULT_REGION = "us-east-1"
CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000

_SECRET_OPTIONS = frozenset({"access_key_id", "secret_access_key", "session_token"})
_OPTIONS = (
    "endpoint",
    "region",
    "profile",
    "path_style",
    "sign_payload",
    "bulk_delete",
    "connect_timeout_ms",
    "request_timeout_ms",
    *ENCRYPTION_OPTIONS,
    *sorted(_SECRET_OPTIONS),
)


@dataclass(frozen=True, slots=True)
class S3Address:
    """A bucket and how to reach it. `repr` and `url` show no secrets."""

    bucket: str
    prefix: str = ""
    """The prefix of all keys, without a slash at either end."""
    endpoint: str | None = None
    """Scheme, host and port; None for AWS."""
    region: str = DEFAULT_REGION
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool = False
    """`endpoint/bucket/key` instead of `bucket.endpoint/key`; the default with an endpoint."""
    sign_payload: bool = False
    """Hash each body into the signature. Otherwise only the headers are signed. TLS then protects
    the body; over plain HTTP (loopback, a private network) the checksums of Tidelog's formats do.
    """
    encryption: Encryption | None = None
    """None: as the bucket's own default says."""
    bulk_delete: bool = True
    """Delete several objects with one DeleteObjects request; some stores lack it."""
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    """The longest time from connecting to the last byte of the response."""

    @property
    def url(self) -> str:
        """The address without credentials. The prefix stands as it was given, without escapes:
        `parse_s3_url` resolves none.
        """
        options = {"endpoint": self.endpoint, "region": self.region} if self.endpoint else {}
        query = f"?{urlencode(options, safe=':/')}" if options else ""
        return f"s3://{self.bucket}{'/' if self.prefix else ''}{self.prefix}{query}"

    @property
    def allow_http(self) -> bool:
        """True if the endpoint is plain HTTP."""
        return self.endpoint is not None and self.endpoint.startswith("http://")

    @property
    def partition(self) -> str:
        """The second part of AWS's names for the bucket, as in `arn:aws:s3:::bucket`."""
        try:
            return str(boto3.session.Session().get_partition_for_region(self.region))
        except botocore.exceptions.UnknownRegionError:
            # Another server's region.
            return "aws"

    def session(self) -> boto3.session.Session:
        """boto3's session, with the URL's credentials or the usual chain.

        The chain is environment, profiles, web identity, containers, instance roles.
        """
        try:
            return boto3.session.Session(
                aws_access_key_id=self.access_key_id,
                aws_secret_access_key=self.secret_access_key,
                aws_session_token=self.session_token,
                region_name=self.region,
                profile_name=self.profile,
            )
        except botocore.exceptions.BotoCoreError as error:
            raise InvalidConfiguration(f"{self.url}: {error}") from error


def parse_s3_url(url: str) -> S3Address:
    """The address that an `s3://bucket/prefix?option=value` URL and the AWS environment name.

    Options: endpoint, region, profile, path_style, sign_payload, bulk_delete, connect_timeout_ms,
    request_timeout_ms, access_key_id, secret_access_key, session_token, sse, sse_kms_key_id,
    sse_customer_key_file, sse_customer_key_env.

    The endpoint comes from the URL, else from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the profile.
    The region comes from the URL, else from AWS_REGION, AWS_DEFAULT_REGION or the profile.
    InvalidConfiguration names the wrong part, and never a credential.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidConfiguration("an S3 store's URL is s3://bucket/prefix?option=value")
    if "@" in parts.netloc:
        raise InvalidConfiguration(
            "credentials do not belong before the bucket; use the options access_key_id and"
            " secret_access_key, or the AWS environment"
        )
    if "#" in url:
        raise InvalidConfiguration(
            f"s3://{parts.netloc}: a bucket's URL has no #; in the value of an option it is"
            " written %23"
        )
    options = _options(parts.netloc, parts.query)
    prefix = parts.path.strip("/")
    if prefix:
        try:
            validate_key(prefix)
        except ValueError as error:
            raise InvalidConfiguration(f"s3://{parts.netloc}: {error}") from None
    address = S3Address(
        bucket=parts.netloc,
        prefix=prefix,
        profile=options.get("profile"),
        access_key_id=options.get("access_key_id"),
        secret_access_key=options.get("secret_access_key"),
        session_token=options.get("session_token"),
        sign_payload=_boolean("sign_payload", options.get("sign_payload", "false")),
        bulk_delete=_boolean("bulk_delete", options.get("bulk_delete", "true")),
        connect_timeout_ms=_milliseconds("connect_timeout_ms", options, CONNECT_TIMEOUT_MS),
        request_timeout_ms=_milliseconds("request_timeout_ms", options, REQUEST_TIMEOUT_MS),
    )
    if (address.access_key_id is None) != (address.secret_access_key is None):
        raise InvalidConfiguration("access_key_id and secret_access_key are given together or not")
    return _located(address, options)


def _located(address: S3Address, options: dict[str, str]) -> S3Address:
    profile = _profile_settings(address)
    endpoint = options.get("endpoint") or _configured_endpoint(profile)
    region = (
        options.get("region")
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or profile.get("region")
        or DEFAULT_REGION
    )
    path_style = options.get("path_style")
    endpoint = _validated_endpoint(endpoint) if endpoint else None
    return replace(
        address,
        endpoint=endpoint,
        encryption=parse_encryption(f"s3://{address.bucket}", options, endpoint),
        region=region,
        path_style=_boolean("path_style", path_style) if path_style else bool(endpoint),
    )


def _profile_settings(address: S3Address) -> dict[str, Any]:
    """The profile's part of the AWS configuration file, with its `services` section resolved."""
    try:
        core = boto3.session.Session(profile_name=address.profile)._session
        scoped = dict(core.get_scoped_config())
        services = core.full_config.get("services", {}).get(scoped.get("services", ""), {})
    except botocore.exceptions.BotoCoreError as error:
        raise InvalidConfiguration(f"AWS configuration: {error}") from error
    specific = services.get("s3", {}).get("endpoint_url")
    return {**scoped, **({"endpoint_url": specific} if specific else {})}


def _configured_endpoint(profile: dict[str, Any]) -> str | None:
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return (
        os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url")
    )


def _options(bucket: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    for name in names:
        if name == "sse_customer_key":
            raise InvalidConfiguration(
                f"s3://{bucket}: a key does not belong in a URL: name a file that holds it with"
                " sse_customer_key_file, or a variable with sse_customer_key_env"
            )
        if name not in _OPTIONS:
            raise InvalidConfiguration(
                f"s3://{bucket}: unknown option {name!r}; known are {', '.join(_OPTIONS)}"
            )
        if names.count(name) > 1:
            raise InvalidConfiguration(f"s3://{bucket}: option {name} is given twice")
    for name, value in pairs:
        if not value:
            raise InvalidConfiguration(f"s3://{bucket}: option {name} is empty")
    return dict(pairs)


def _validated_endpoint(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.username is not None or parts.password is not None:
        raise InvalidConfiguration("credentials do not belong in the endpoint")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidConfiguration(f"endpoint {endpoint!r} is not http://host:port or https://host")
    if parts.path.strip("/") or parts.query:
        raise InvalidConfiguration(f"endpoint {endpoint!r} must not have a path or a query")
    return f"{parts.scheme}://{parts.netloc}"


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise InvalidConfiguration(f"option {name} is true or false, not {value!r}")
    return value.lower() == "true"


def _milliseconds(name: str, options: dict[str, str], default: int) -> int:
    value = options.get(name, str(default))
    if not value.isdecimal() or not 1 <= int(value) <= 600_000:
        raise InvalidConfiguration(f"option {name} is milliseconds in [1, 600000], not {value!r}")
    return int(value)
