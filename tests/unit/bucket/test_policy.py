"""Least-privilege policies as documents. `make integration` has MinIO judge them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.bucket.policy import Role, role_policy
from tidelog.cli.root import cli
from tidelog.errors import InvalidConfiguration


def statements(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["Sid"]: each for each in document["Statement"]}


@pytest.mark.parametrize("role", Role)
def test_only_a_broker_reaches_the_credentials(role: Role) -> None:
    found = statements(role_policy(role, "b", "p"))
    credentials = "arn:aws:s3:::b/p/cluster/credentials/*"
    if role is Role.BROKER:
        assert "NoCredentials" not in found
        assert "arn:aws:s3:::b/p/cluster/*" in found["Get"]["Resource"]
        return
    assert found["NoCredentials"]["Effect"] == "Deny"
    assert found["NoCredentials"]["Action"] == ["s3:*"]
    assert found["NoCredentials"]["Resource"] == [credentials]
    allowed = {each for name in ("Get", "Put") for each in found.get(name, {}).get("Resource", ())}
    assert "arn:aws:s3:::b/p/cluster/*" not in allowed


@pytest.mark.parametrize(("prefix", "root"), [("", ""), ("p/q", "p/q/")])
def test_a_sink_may_stage_and_nothing_else(prefix: str, root: str) -> None:
    found = statements(role_policy(Role.SPARK_SINK, "b", prefix, "aws-cn"))
    assert set(found) == {"Put", "NoCredentials"}
    assert found["Put"]["Action"] == ["s3:PutObject"]
    assert found["Put"]["Resource"] == [f"arn:aws-cn:s3:::b/{root}staged/*"]


def test_a_prefix_that_would_be_a_pattern_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="choose a prefix without them"):
        role_policy(Role.READER, "b", "p*")


@pytest.mark.parametrize(
    ("region", "partition"), [("cn-north-1", "aws-cn"), ("eu-west-1", "aws"), ("garage", "aws")]
)
def test_the_command_prints_a_policy(region: str, partition: str) -> None:
    url = f"s3://my-bucket/prefix?region={region}"
    done = CliRunner().invoke(cli, ["bucket", "policy", url, "--role", "fsck"])
    found = statements(json.loads(done.output))
    assert set(found) == {"List", "AbsentObjects", "Get", "NoCredentials"}
    assert found["List"]["Resource"] == [f"arn:{partition}:s3:::my-bucket"]
    assert found["List"]["Condition"] == {"StringLike": {"s3:prefix": ["prefix/*"]}}


def test_an_unknown_role_and_another_store_are_named() -> None:
    wrong = CliRunner().invoke(cli, ["bucket", "policy", "s3://b", "--role", "writer"])
    assert wrong.exit_code == 2
    assert "spark-sink" in wrong.output
    other = CliRunner().invoke(cli, ["bucket", "policy", "file:///x", "--role", "reader"])
    assert "an S3 store's URL is s3://bucket" in str(other.exception)


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        ("broker", ["kms:GenerateDataKey", "kms:Decrypt"]),
        ("reader", ["kms:Decrypt"]),
        ("fsck", ["kms:Decrypt"]),
        ("spark-sink", ["kms:GenerateDataKey"]),
    ],
)
def test_a_role_may_use_its_encryption_key(role: str, actions: list[str]) -> None:
    key = "arn:aws:kms:eu-west-1:1:key/2"
    url = f"s3://my-bucket/prefix?sse=kms&sse_kms_key_id={key}"
    done = CliRunner().invoke(cli, ["bucket", "policy", url, "--role", role])
    found = statements(json.loads(done.output))["Key"]
    assert (found["Action"], found["Resource"]) == (actions, [key])


def test_a_policy_needs_the_key_s_full_name() -> None:
    with pytest.raises(InvalidConfiguration, match="names a key by its ARN"):
        role_policy(Role.READER, "b", "p", kms_key="alias/x")
