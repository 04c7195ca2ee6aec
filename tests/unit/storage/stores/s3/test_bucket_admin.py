"""Creating and checking buckets: the requests, the reports and their words."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest

from tests.unit.storage.scripted_server import ScriptedServer, answer, error
from tidelog.errors import InvalidConfiguration, Unreachable
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import REGION, S3Server, start_moto
from tidelog.storage.object_store import AccessDenied, StoreMisconfigured
from tidelog.storage.stores.s3.bucket_admin import (
    UPLOAD_RULE_ID,
    BucketCreation,
    ExpiryRule,
    check_bucket,
    create_bucket,
)

_buckets = iter(f"bucket-{number}" for number in range(1000))


def rules_of(server: S3Server, bucket: str) -> list[dict[str, Any]]:
    answer = server.client().get_bucket_lifecycle_configuration(Bucket=bucket)
    return list(answer["Rules"])


def set_rules(server: S3Server, bucket: str, *rules: dict[str, Any]) -> None:
    server.client().put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": list(rules)}
    )


def rule(rule_id: str, **more: Any) -> dict[str, Any]:
    return {"ID": rule_id, "Status": "Enabled", "Filter": {"Prefix": ""}, **more}


# --- create ---


def test_a_bucket_is_created_once_with_the_rule_for_incomplete_uploads(moto: S3Server) -> None:
    bucket = next(_buckets)
    url = moto.url_of(bucket, "prefix")
    assert create_bucket(url) == BucketCreation(bucket, created=True, upload_rule="added")
    (made,) = rules_of(moto, bucket)
    assert made["ID"] == UPLOAD_RULE_ID
    assert made["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert create_bucket(url) == BucketCreation(bucket, created=False, upload_rule="present")
    assert len(rules_of(moto, bucket)) == 1
    assert check_bucket(url).ok


def test_rules_that_are_there_stay(moto: S3Server) -> None:
    bucket = moto.create_bucket(next(_buckets))
    set_rules(moto, bucket, rule("mine", Expiration={"Days": 7}))
    assert create_bucket(moto.url_of(bucket)).upload_rule == "added"
    assert {made["ID"] for made in rules_of(moto, bucket)} == {"mine", UPLOAD_RULE_ID}


def test_a_bucket_is_created_in_the_region_of_the_url(moto: S3Server) -> None:
    bucket = next(_buckets)
    create_bucket(moto.url_of(bucket).replace(f"region={REGION}", "region=eu-central-1"))
    place = moto.client().get_bucket_location(Bucket=bucket)["LocationConstraint"]
    assert place == "eu-central-1"


def test_a_bucket_of_another_account_is_refused() -> None:
    with (
        ScriptedServer([answer(403), error(409, "BucketAlreadyExists")]) as server,
        pytest.raises(StoreMisconfigured, match="another account owns"),
    ):
        create_bucket(server.url)


def test_a_store_without_lifecycle_rules_is_good_enough() -> None:
    refusal = error(501, "NotImplemented", "no lifecycle here")
    with ScriptedServer([answer(404), answer(200), refusal, refusal]) as server:
        created = create_bucket(server.url)
    assert created.created
    assert created.upload_rule.startswith("not added: ")
    assert "no lifecycle here" in created.upload_rule


def test_a_failed_creation_of_a_bucket_names_the_cause() -> None:
    (port,) = free_ports(1)
    credentials = "access_key_id=K&secret_access_key=s3cr3t"
    with pytest.raises(Unreachable, match="cannot create the bucket"):
        create_bucket(f"s3://bucket?endpoint=http://127.0.0.1:{port}&{credentials}")
    with (
        ScriptedServer([answer(403), error(403, "AccessDenied")]) as server,
        pytest.raises(AccessDenied, match="check the credentials"),
    ):
        create_bucket(server.url)
    with (
        ScriptedServer([answer(404), error(400, "InvalidBucketName")]) as server,
        pytest.raises(StoreMisconfigured, match="InvalidBucketName"),
    ):
        create_bucket(server.url)
    with pytest.raises(InvalidConfiguration, match="only S3 stores have buckets"):
        create_bucket("file:///var/tidelog")


# --- check ---


def test_a_good_bucket(moto: S3Server) -> None:
    bucket = next(_buckets)
    create_bucket(moto.url_of(bucket))
    report = check_bucket(moto.url_of(bucket, "prefix"))
    assert report.ok
    assert report.reachable
    assert report.conditional_writes
    assert report.versioning == "off"
    assert report.incomplete_uploads_end
    assert (report.expiry_rules, report.missing_permissions, report.problem) == ((), (), None)
    assert moto.secret_key not in repr(report)
    assert "Contents" not in moto.client().list_objects_v2(Bucket=bucket)


def test_versioning_is_reported(moto: S3Server) -> None:
    bucket = moto.create_bucket(next(_buckets))
    for status in ("Enabled", "Suspended"):
        moto.client().put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": status}
        )
        assert check_bucket(moto.url_of(bucket)).versioning == status.lower()


def test_rules_that_would_delete_our_objects_are_reported(moto: S3Server) -> None:
    bucket = moto.create_bucket(next(_buckets))
    tag = {"Key": "k", "Value": "v"}
    set_rules(
        moto,
        bucket,
        rule("all", Expiration={"Days": 7}),
        rule("ours", Filter={"Prefix": "data/tide"}, Expiration={"Days": 30}),
        rule("inside", Filter={"Prefix": "data/tidelog/wal/"}, Expiration={"Days": 1}),
        rule("other", Filter={"Prefix": "other/"}, Expiration={"Days": 1}),
        rule("tagged", Filter={"Tag": tag}, Expiration={"Days": 1}),
        rule("off", Status="Disabled", Expiration={"Days": 1}),
        rule("cold", Transitions=[{"Days": 5, "StorageClass": "GLACIER"}]),
        rule("cool", Transitions=[{"Days": 5, "StorageClass": "STANDARD_IA"}]),
        rule("uploads", AbortIncompleteMultipartUpload={"DaysAfterInitiation": 3}),
    )
    report = check_bucket(moto.url_of(bucket, "data/tidelog"))
    assert not report.ok
    assert report.conditional_writes
    assert report.incomplete_uploads_end
    assert report.expiry_rules == (
        ExpiryRule("all", "", "deletes objects after 7 days"),
        ExpiryRule("ours", "data/tide", "deletes objects after 30 days"),
        ExpiryRule("inside", "data/tidelog/wal/", "deletes objects after 1 days"),
        ExpiryRule("cold", "", "moves objects to GLACIER, where they cannot be read at once"),
    )


def test_a_missing_bucket_is_reported_with_the_remedy(moto: S3Server) -> None:
    report = check_bucket(moto.url_of("no-such-bucket"))
    assert not report.reachable
    assert not report.ok
    assert report.problem is not None
    assert "tidelog bucket create" in report.problem


def test_an_endpoint_without_a_server_is_reported() -> None:
    (port,) = free_ports(1)
    report = check_bucket(
        f"s3://bucket?endpoint=http://127.0.0.1:{port}&access_key_id=K&secret_access_key=s3cr3t"
    )
    assert not report.reachable
    assert "check the endpoint" in str(report.problem)
    assert "s3cr3t" not in repr(report)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A moto that checks permissions. Yields the URLs of a user with few permissions and of an
    unknown user."""

    limited: str
    unknown: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with start_moto(tmp_path_factory.mktemp("guarded")) as server:
        limited = limited_user(server, "s3:GetObject", "s3:ListBucket", "s3:PutObject")
        checking = urllib.request.Request(
            f"{server.endpoint}/moto-api/reset-auth",
            data=b"0",
            headers={"Content-Type": "text/plain"},
        )
        with urllib.request.urlopen(checking) as reply:
            assert reply.status == 200
        yield Guarded(limited=limited.url, unknown=server.url)


def limited_user(server: S3Server, *actions: str) -> S3Server:
    """The server, with the credentials of a new user who has only these permissions."""
    iam = boto3.client(
        "iam",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    iam.create_user(UserName="limited")
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName="limited", PolicyName="limits", PolicyDocument=policy)
    key = iam.create_access_key(UserName="limited")["AccessKey"]
    return replace(server, access_key=key["AccessKeyId"], secret_key=key["SecretAccessKey"])


def test_missing_permissions_are_named(guarded: Guarded) -> None:
    report = check_bucket(guarded.limited)
    assert set(report.missing_permissions) == {
        "s3:DeleteObject",
        "s3:GetBucketVersioning",
        "s3:GetLifecycleConfiguration",
    }
    assert not report.ok
    assert "does not let Tidelog delete objects" in str(report.problem)
    assert report.versioning == "unknown"


def test_wrong_credentials_are_told(guarded: Guarded) -> None:
    report = check_bucket(guarded.unknown)
    assert not report.ok
    assert "credentials" in str(report.problem)
