"""Creates and checks buckets for `tidelog bucket`.

The functions block (boto3): do not call them from a running event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.client import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)

from tidelog.entropy import SystemEntropy
from tidelog.errors import InvalidConfiguration, Unreachable
from tidelog.storage.object_store import AccessDenied, StoreError, StoreMisconfigured
from tidelog.storage.stores.probe import probe
from tidelog.storage.stores.s3.s3 import S3Store
from tidelog.storage.stores.s3.s3_address import DEFAULT_REGION, S3Address, parse_s3_url

UPLOAD_RULE_ID = "tidelog-end-incomplete-uploads"
UPLOAD_RULE_DAYS = 1

_DENIED_CODES = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"})
_ABSENT_CODES = frozenset({"NoSuchBucket", "404"})
_NO_RULES_CODES = frozenset({"NoSuchLifecycleConfiguration"})
_CREDENTIAL_CODES = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})


@dataclass(frozen=True, slots=True)
class BucketCreation:
    """The result of `create_bucket`."""

    bucket: str
    created: bool
    """False if the bucket existed and these credentials own it."""
    upload_rule: str
    """`added` or `present`; else the store's reason for refusing the rule against incomplete
    uploads.
    """


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """A lifecycle rule that would delete Tidelog's objects or make them unreadable."""

    rule_id: str
    prefix: str
    """The key prefix in the bucket to which the rule applies."""
    effect: str
    """The rule's action, as text."""


@dataclass(frozen=True, slots=True)
class BucketReport:
    """The findings of `check_bucket`. `ok` if brokers can run on the bucket."""

    url: str
    reachable: bool
    problem: str | None
    """Why the bucket is unreachable or unusable; None if it is usable."""
    versioning: str
    """`off`, `enabled`, `suspended` or `unknown`. With versioning, deleted objects keep costing
    money.
    """
    expiry_rules: tuple[ExpiryRule, ...]
    missing_permissions: tuple[str, ...]
    """S3 actions that the credentials lack. Only this check needs `s3:GetBucketVersioning` and
    `s3:GetLifecycleConfiguration`.
    """
    conditional_writes: bool
    """True if the store passed the probe that brokers run when they start."""
    incomplete_uploads_end: bool
    """True if a rule ends incomplete multipart uploads of other programs."""

    @property
    def ok(self) -> bool:
        return self.problem is None and self.conditional_writes and not self.expiry_rules


def create_bucket(url: str) -> BucketCreation:
    """Create the URL's bucket, and the rule that ends incomplete uploads after a day.

    An owned bucket stays as it is, except for that rule. StoreMisconfigured if another account owns
    the bucket or creation fails; AccessDenied; Unreachable.
    """
    address = _address(url)
    client = _client(address)
    place = {"LocationConstraint": address.region}
    options = {} if address.region == DEFAULT_REGION else {"CreateBucketConfiguration": place}
    # Ask first: creating an owned bucket may succeed without effect.
    created = _outcome(lambda: client.head_bucket(Bucket=address.bucket)) is not None
    if created:
        try:
            client.create_bucket(Bucket=address.bucket, **options)
        except client.exceptions.BucketAlreadyOwnedByYou:
            # Another process created it meanwhile, or the credentials may not send HEAD.
            created = False
        except client.exceptions.BucketAlreadyExists as error:
            raise StoreMisconfigured(
                address.url, "another account owns a bucket of this name; choose another name"
            ) from error
        except (BotoCoreError, ClientError) as error:
            raise _store_error(address, "create the bucket", error) from error
    return BucketCreation(address.bucket, created, _add_upload_rule(client, address.bucket))


def check_bucket(url: str) -> BucketReport:
    """Inspect the URL's bucket and write, read and delete a probe object in it.

    The report carries all problems. InvalidConfiguration if the URL is not an S3 store's.
    """
    address = _address(url)
    try:
        client = _client(address)
        client.head_bucket(Bucket=address.bucket)
    except (BotoCoreError, ClientError, StoreError) as error:
        if not (isinstance(error, ClientError) and _code(error) in _DENIED_CODES):
            return _unusable(address, str(_store_error(address, "reach the bucket", error)))
        # The credentials may lack permission to list alone: test each permission.
        client = _client(address)
    versioning = _versioning(client, address.bucket)
    rules = _rules(client, address.bucket)
    missing = _missing_permissions(client, address)
    if versioning is None:
        missing.append("s3:GetBucketVersioning")
    if rules is None:
        missing.append("s3:GetLifecycleConfiguration")
    problem = _probe(address)
    return BucketReport(
        url=address.url,
        reachable=True,
        problem=problem,
        versioning=versioning or "unknown",
        expiry_rules=tuple(_harmful(rules or [], address.prefix)),
        missing_permissions=tuple(missing),
        conditional_writes=problem is None,
        incomplete_uploads_end=any(map(_ends_uploads, rules or [])),
    )


def _address(url: str) -> S3Address:
    if not url.startswith("s3://"):
        raise InvalidConfiguration(
            "only S3 stores have buckets; the directory of a file:// store is created when a"
            " broker first writes to it"
        )
    return parse_s3_url(url)


def _client(address: S3Address) -> Any:
    return address.session().client(
        "s3",
        endpoint_url=address.endpoint,
        config=Config(
            s3={"addressing_style": "path" if address.path_style else "auto"},
            connect_timeout=address.connect_timeout_ms / 1000,
            read_timeout=address.request_timeout_ms / 1000,
            retries={"total_max_attempts": 2},
        ),
    )


def _add_upload_rule(client: Any, bucket: str) -> str:
    try:
        rules = _read_rules(client, bucket)
        if any(map(_ends_uploads, rules)):
            return "present"
        rule = {
            "ID": UPLOAD_RULE_ID,
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": UPLOAD_RULE_DAYS},
        }
        # The request replaces all rules, so it repeats the existing ones.
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [*rules, rule]}
        )
    except (BotoCoreError, ClientError) as error:
        return f"not added: {error}"
    return "added"


def _read_rules(client: Any, bucket: str) -> list[dict[str, Any]]:
    try:
        answer = client.get_bucket_lifecycle_configuration(Bucket=bucket)
    except ClientError as error:
        if _code(error) in _NO_RULES_CODES:
            return []
        raise
    return list(answer.get("Rules", []))


def _rules(client: Any, bucket: str) -> list[dict[str, Any]] | None:
    """The lifecycle rules; empty if the store has no such API; None if access is denied."""
    try:
        return _read_rules(client, bucket)
    except ClientError as error:
        return None if _code(error) in _DENIED_CODES else []


def _versioning(client: Any, bucket: str) -> str | None:
    """The bucket's versioning state in lower case; None if access is denied."""
    try:
        answer = client.get_bucket_versioning(Bucket=bucket)
    except ClientError as error:
        return None if _code(error) in _DENIED_CODES else "unknown"
    return str(answer.get("Status", "off")).lower()


def _missing_permissions(client: Any, address: S3Address) -> list[str]:
    prefix = f"{address.prefix}/" if address.prefix else ""
    where = {"Bucket": address.bucket, "Key": f"{prefix}probe/permissions"}
    sse = address.encryption
    putting = {} if sse is None else sse.put_arguments()
    getting = {} if sse is None else sse.get_arguments()
    requests: list[tuple[str, Callable[[], Any]]] = [
        ("s3:ListBucket", lambda: client.list_objects_v2(Bucket=address.bucket, MaxKeys=1)),
        ("s3:PutObject", lambda: client.put_object(**where, **putting, Body=b"tidelog probe")),
        ("s3:GetObject", lambda: client.get_object(**where, **getting)["Body"].read()),
        ("s3:DeleteObject", lambda: client.delete_object(**where)),
    ]
    return [action for action, request in requests if _outcome(request) in _DENIED_CODES]


def _outcome(request: Callable[[], Any]) -> str | None:
    """The error code of a request, or None after success."""
    try:
        request()
    except ClientError as error:
        return _code(error)
    except BotoCoreError as error:
        return type(error).__name__
    return None


def _harmful(rules: list[dict[str, Any]], our_prefix: str) -> list[ExpiryRule]:
    found = []
    for rule in rules:
        condition = rule.get("Filter", {})
        both = condition.get("And", {})
        prefix = condition.get("Prefix") or both.get("Prefix") or rule.get("Prefix") or ""
        ours = f"{our_prefix}/" if our_prefix else ""
        # Tidelog's objects carry no tags, so a rule that requires a tag skips them.
        tagged = "Tag" in condition or bool(both.get("Tags"))
        concerns_us = prefix.startswith(ours) or ours.startswith(prefix)
        if rule.get("Status") != "Enabled" or tagged or not concerns_us:
            continue
        rule_id = rule.get("ID", "")
        found += [ExpiryRule(rule_id, prefix, effect) for effect in _effects(rule)]
    return found


def _effects(rule: dict[str, Any]) -> list[str]:
    effects = []
    expiration = rule.get("Expiration", {})
    if "Days" in expiration:
        effects.append(f"deletes objects after {expiration['Days']} days")
    if "Date" in expiration:
        effects.append(f"deletes objects on {expiration['Date']:%Y-%m-%d}")
    effects += [
        f"moves objects to {transition['StorageClass']}, where they cannot be read at once"
        for transition in rule.get("Transitions", [])
        if transition.get("StorageClass") in {"GLACIER", "DEEP_ARCHIVE"}
    ]
    return effects


def _ends_uploads(rule: dict[str, Any]) -> bool:
    return rule.get("Status") == "Enabled" and "AbortIncompleteMultipartUpload" in rule


def _probe(address: S3Address) -> str | None:
    """The probe's error as text, or None if the store passes."""

    async def run() -> None:
        store = S3Store(address)
        try:
            await probe(store, SystemEntropy())
        finally:
            await store.close()

    try:
        asyncio.run(run())
    except StoreError as error:
        return str(error)
    return None


def _unusable(address: S3Address, problem: str) -> BucketReport:
    return BucketReport(
        url=address.url,
        reachable=False,
        problem=problem,
        versioning="unknown",
        expiry_rules=(),
        missing_permissions=(),
        conditional_writes=False,
        incomplete_uploads_end=False,
    )


def _store_error(address: S3Address, what: str, error: Exception) -> StoreError | Unreachable:
    if isinstance(error, StoreError):
        return error
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return AccessDenied(
            address.url,
            f"cannot {what}: no AWS credentials were found; set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the URL's options",
        )
    if isinstance(error, BotoConnectionError):
        return Unreachable(f"{address.url}: cannot {what}: {error}; check the endpoint")
    code = _code(error) if isinstance(error, ClientError) else ""
    if code in _ABSENT_CODES:
        return StoreMisconfigured(
            address.url,
            f"bucket {address.bucket} does not exist; create it with: tidelog bucket create URL",
        )
    if code in _DENIED_CODES | _CREDENTIAL_CODES:
        return AccessDenied(
            address.url, f"cannot {what} ({error}); check the credentials and their policy"
        )
    return StoreMisconfigured(address.url, f"cannot {what}: {error}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
