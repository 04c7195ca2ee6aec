"""Least-privilege policies (AWS IAM) for the users of a cluster's bucket. Pure.

Every role may ask for absent objects: a store answers 404 for them only to a caller that may list
the bucket, and 403 to others, which would look like a missing right. That request names no prefix,
and neither does a listing of the whole bucket. So such a listing is allowed to every role but the
sink's: it shows names of objects, which hold no names of topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidelog.bucket.object_keys import STAGED_FOLDER
from tidelog.coordinator.cluster.log.prefix import (
    CLUSTER_FOLDER,
    COLLECTION_PREFIX,
    DATA_FOLDERS,
    LEASE_PREFIX,
    LOG_PREFIX,
    PROBE_FOLDER,
    SNAPSHOT_PREFIX,
)
from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX
from tidelog.errors import InvalidConfiguration

VERSION: Final = "2012-10-17"
"""Of the language of policies."""
_PATTERN_LETTERS: Final = frozenset("*?$")
_TOPICS: Final = tuple(folder for folder in DATA_FOLDERS if folder != CLUSTER_FOLDER)
_METADATA: Final = (LOG_PREFIX, SNAPSHOT_PREFIX, LEASE_PREFIX)
_WHOLE: Final = ("",)


class Role(StrEnum):
    BROKER = "broker"
    READER = "reader"
    SPARK_SINK = "spark-sink"
    FSCK = "fsck"


@dataclass(frozen=True, slots=True)
class _Rights:
    """Folders below which a role may send each kind of request."""

    lists: tuple[str, ...] = ()
    gets: tuple[str, ...] = ()
    puts: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()


_EVERYTHING: Final = (*DATA_FOLDERS, PROBE_FOLDER)
_RIGHTS: Final = {
    Role.BROKER: _Rights(_WHOLE, _EVERYTHING, _EVERYTHING, _EVERYTHING),
    Role.READER: _Rights((*_METADATA, *_TOPICS), (*_METADATA, *_TOPICS)),
    Role.SPARK_SINK: _Rights(puts=(STAGED_FOLDER,)),
    Role.FSCK: _Rights(_WHOLE, (*_METADATA, COLLECTION_PREFIX, *_TOPICS)),
}


def role_policy(
    role: Role, bucket: str, prefix: str, partition: str = "aws", kms_key: str | None = None
) -> dict[str, Any]:
    """The policy document of a role on the cluster at s3://BUCKET/PREFIX.

    `partition`: AWS's, the second part of its names. `kms_key`: the key that encrypts the objects.
    InvalidConfiguration if the prefix has letters that are a pattern in a policy, or if the key is
    not given by its full name.
    """
    if kms_key is not None and not kms_key.startswith("arn:"):
        raise InvalidConfiguration(
            f"sse_kms_key_id={kms_key}: a policy names a key by its ARN, as in"
            f" arn:{partition}:kms:REGION:ACCOUNT:key/ID"
        )
    if _PATTERN_LETTERS & set(prefix):
        raise InvalidConfiguration(
            f"s3://{bucket}/{prefix}: *, ? and $ stand for other letters in a policy; choose a"
            " prefix without them"
        )
    root = f"{prefix}/" if prefix else ""
    arn = f"arn:{partition}:s3:::{bucket}"
    rights = _RIGHTS[role]
    statements: list[dict[str, Any]] = []
    if rights.lists:
        listed = {"StringLike": {"s3:prefix": [f"{root}{folder}*" for folder in rights.lists]}}
        absent = {"Null": {"s3:prefix": "true"}}
        for name, condition in (("List", listed), ("AbsentObjects", absent)):
            statements.append(_statement(name, "s3:ListBucket", [arn]) | {"Condition": condition})
    for action, folders in (
        ("Get", rights.gets),
        ("Put", rights.puts),
        ("Delete", rights.deletes),
    ):
        if folders:
            objects = [f"{arn}/{root}{folder}*" for folder in folders]
            statements.append(_statement(action, f"s3:{action}Object", objects))
    if kms_key is not None:
        uses = (("GenerateDataKey", rights.puts), ("Decrypt", rights.gets))
        used = _statement("Key", "", [kms_key])
        statements.append(used | {"Action": [f"kms:{name}" for name, folders in uses if folders]})
    if role is not Role.BROKER:
        # It counts also beside a policy that allows more.
        hidden = _statement("NoCredentials", "s3:*", [f"{arn}/{root}{CREDENTIALS_PREFIX}*"])
        statements.append(hidden | {"Effect": "Deny"})
    return {"Version": VERSION, "Statement": statements}


def _statement(name: str, action: str, resources: Iterable[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": [action], "Resource": [*resources]}
