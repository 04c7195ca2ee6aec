"""The policies of `tidelog bucket policy`, judged by MinIO's own policy engine.

Each role does its work with the credentials of a user that has nothing but its policy. Then the
test tries every operation in every folder: the server refuses all that the table below does not
name.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.kept_secrets import keep
from tests.unit.broker.sink_world import QUERY, SINK, rows_of
from tidelog.cli.commands.bucket import _found_cluster
from tidelog.cli.scram_options import ScramOption
from tidelog.client.admin.flush import flush_topic
from tidelog.client.groups.admin import Place
from tidelog.client.metadata import TopicMetadata
from tidelog.client.pool import Client
from tidelog.client.transactions.sink import SinkBatch, SinkCommitted, commit
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.identifiers import TopicPartition
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.s3_servers import S3Server
from tidelog.network import SocketNetwork
from tidelog.sdk.admin import Admin
from tidelog.sdk.producer import Producer
from tidelog.sdk.table import Table
from tidelog.storage.object_store import AccessDenied
from tidelog.storage.stores.location import open_store
from tidelog.wal.format.staged_format import StagedFor
from tidelog.wal.write.staging import stage

pytestmark = pytest.mark.integration

ROLES = ("broker", "reader", "spark-sink", "fsck")
SECRET = keep("a-secret-of-a-role", "the key of a role")
TENANT = "tenant/cluster"
TRIED = "tried/cluster"
TOPICS = ("wal/", "checkpoint/", "merged/", "handover/", "staged/", "state/", "topics/")
METADATA = ("cluster/log/", "cluster/snapshot/", "cluster/lease/")
MARKS = ("cluster/collection/",)
CREDENTIALS = "cluster/credentials/"
FOLDERS = (*TOPICS, *METADATA, *MARKS, CREDENTIALS, "probe/", "others/")
ELSEWHERE = ("tried/", "tried/cluster2/wal/", "tried/clusters/wal/", "another/cluster/wal/")
"""Folders outside of the cluster's prefix, with names like those in it."""

ALLOWED: dict[str, dict[str, tuple[str, ...]]] = {
    "broker": {
        "list": FOLDERS,
        "get": (*TOPICS, *METADATA, *MARKS, CREDENTIALS, "probe/"),
        "put": (*TOPICS, *METADATA, *MARKS, CREDENTIALS, "probe/"),
        "delete": (*TOPICS, *METADATA, *MARKS, CREDENTIALS, "probe/"),
    },
    "reader": {"list": (*TOPICS, *METADATA), "get": (*TOPICS, *METADATA)},
    "spark-sink": {"put": ("staged/",)},
    "fsck": {"list": FOLDERS, "get": (*TOPICS, *METADATA, *MARKS)},
}
LISTS_EVERYTHING = {"broker", "reader", "fsck"}
"""Roles that may list without a prefix, so that the server tells absent objects from refused
ones."""


@dataclass(frozen=True)
class Roles:
    """Creates a user of MinIO for each role on a prefix, with only the role's policy."""

    server: S3Server
    prefix: str

    def as_role(self, role: str) -> S3Server:
        return replace(self.server, access_key=self.user(role), secret_key=SECRET)

    def user(self, role: str) -> str:
        return f"{self.prefix.partition('/')[0]}-{role}"

    def url(self, role: str) -> str:
        """A store with the role's key, for use in this process."""
        return self.as_role(role).url_of(self.server.bucket, self.prefix)

    @property
    def keyless_url(self) -> str:
        return f"s3://{self.server.bucket}/{self.prefix}"

    def run(self, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command with the role's key in its environment, which no list of processes shows."""
        environment = {**os.environ, **self.as_role(role).environment}
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def administer(minio: S3Server) -> Callable[[str], Roles]:
    """Makes a user for each role on a prefix."""
    from minio.credentials.providers import StaticProvider
    from minio.minioadmin import MinioAdmin

    admin = MinioAdmin(
        endpoint=minio.endpoint.removeprefix("http://"),
        credentials=StaticProvider(minio.access_key, minio.secret_key),
        secure=False,
    )

    def make(prefix: str) -> Roles:
        roles = Roles(minio, prefix)
        for role in ROLES:
            printed = roles.run(role, "bucket", "policy", roles.keyless_url, "--role", role)
            admin.policy_add(roles.user(role), policy=json.loads(printed.stdout))
            admin.user_add(roles.user(role), SECRET)
            admin.attach_policy([roles.user(role)], user=roles.user(role))
        admin.user_add(f"{roles.user('reader')}-of-all", SECRET)
        admin.attach_policy(
            [roles.user("reader"), "readwrite"], user=f"{roles.user('reader')}-of-all"
        )
        return roles

    return make


@pytest.fixture(scope="module")
def tenant(administer: Callable[[str], Roles]) -> Roles:
    return administer(TENANT)


@pytest.fixture(scope="module")
def broker(tenant: Roles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Make and serve a closed cluster with only the rights of the broker's role."""
    folder: Path = tmp_path_factory.mktemp("policies")
    environment = tenant.as_role("broker").environment
    credential = ScramOption().convert("SCRAM-SHA-256=[name=a,password=b]", None, None)
    # `tidelog bucket create` would also create the bucket, which a broker may not.
    asyncio.run(_found_cluster(tenant.url("broker"), (credential,)))
    with BrokerProcess.start(
        tenant.keyless_url, folder / "first.log", environment=environment
    ) as first:
        Admin(first.kafka).create_topic("flights", partitions=2)
        write(first, "a", "b")
        assert first.stop() == 0
    with BrokerProcess.start(
        tenant.keyless_url, folder / "second.log", environment=environment
    ) as second:
        write(second, "c")
        asyncio.run(flushed(second))
        write(second, "d")
        yield second


def write(broker: BrokerProcess, *values: str) -> None:
    with Producer(broker.kafka) as producer:
        for value in values:
            producer.send("flights", value, partition=0)


def client(broker: BrokerProcess) -> Client:
    host, _, port = broker.kafka.rpartition(":")
    return Client(SocketNetwork(), SystemClock(), [(host, int(port))])


async def flushed(broker: BrokerProcess) -> None:
    async with client(broker) as one:
        await flush_topic(one, "flights", 30_000)


def values(roles: Roles, partition: int = 0) -> list[bytes]:
    """Read by a user with the reader's rights."""
    rows = Table(roles.url("reader"), "flights").to_arrow(partitions=[partition])
    found: list[bytes] = rows.column("value").to_pylist()
    return found


def test_a_broker_works_with_its_rights_and_a_reader_reads_without_the_credentials(
    tenant: Roles, broker: BrokerProcess
) -> None:
    assert broker.process.poll() is None
    assert values(tenant) == [b"a", b"b", b"c", b"d"]

    async def read_credentials() -> None:
        for role in ("reader", "fsck"):
            store = open_store(tenant.url(role), SystemClock(), SystemEntropy())
            root = open_store(tenant.url("broker"), SystemClock(), SystemEntropy())
            keys = [meta.key async for meta in root.list(CREDENTIALS)]
            assert len(keys) == 1
            await root.get(keys[0])
            with pytest.raises(AccessDenied):
                await store.get(keys[0])

    asyncio.run(read_credentials())


def test_fsck_proves_the_bucket_consistent_with_its_rights(
    tenant: Roles, broker: BrokerProcess
) -> None:
    done = tenant.run("fsck", "fsck", "--store", tenant.keyless_url)
    assert done.stdout.splitlines()[-1] == "consistent", done.stderr


def test_a_sink_stages_with_its_rights_and_the_broker_adopts(
    tenant: Roles, broker: BrokerProcess
) -> None:
    async def sink() -> SinkCommitted:
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_store(tenant.url("spark-sink"), clock, entropy)
        async with client(broker) as one:
            topic: TopicMetadata = await one.topic("flights")
            rows = {TopicPartition(topic.topic_id, 1): [rows_of(b"x", b"y")]}
            staged = await stage(store, clock, entropy, StagedFor(SINK, QUERY, 0), rows)
            assert staged is not None
            batch = SinkBatch(SINK, QUERY, 0, {Place("flights", 1): [staged.staged_id]})
            return await commit(one, clock, entropy, batch)

    assert asyncio.run(sink()) is SinkCommitted.NOW
    assert values(tenant, 1) == [b"x", b"y"]


def test_doctor_finds_the_broker_s_rights_complete_and_the_reader_s_not(
    tenant: Roles, broker: BrokerProcess
) -> None:
    well = tenant.run("broker", "doctor", tenant.keyless_url, "--bootstrap", broker.kafka)
    assert well.returncode == 0, well.stdout
    assert "failed" not in well.stdout
    done = tenant.run("reader", "doctor", tenant.keyless_url, "--json")
    rights = {each["check"]: each["found"] for each in json.loads(done.stdout)["checks"]}["rights"]
    assert done.returncode == 1
    assert "put below cluster/, wal/" in rights
    assert "get below cluster/, cluster/credentials/, probe/" in rights


@pytest.fixture(scope="module")
def tried(administer: Callable[[str], Roles], minio: S3Server) -> Roles:
    roles = administer(TRIED)
    root = minio.client()
    for folder in (*(f"{TRIED}/{each}" for each in FOLDERS), *ELSEWHERE):
        root.put_object(Bucket=minio.bucket, Key=f"{folder}there", Body=b"there")
    return roles


def refused(request: Callable[[], Any]) -> bool:
    """Whether the server refuses a request. Any other error fails the test."""
    try:
        request()
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("AccessDenied", "403"):
            raise
        return True
    return False


def operations(client: Any, bucket: str, folder: str, new_key: str) -> dict[str, list[bool]]:
    """Which requests of each operation the server refuses in a folder."""
    there = {"Bucket": bucket, "Key": f"{folder}there"}
    new = {"Bucket": bucket, "Key": f"{folder}{new_key}", "Body": b"new"}

    def bulk() -> None:
        done = client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": f"{folder}absent-{n}"} for n in range(2)]}
        )
        for each in done.get("Errors", ()):
            raise ClientError({"Error": each}, "DeleteObjects")

    return {
        "list": [refused(lambda: client.list_objects_v2(Bucket=bucket, Prefix=folder))],
        "get": [
            refused(lambda: client.get_object(**there)["Body"].read()),
            refused(lambda: client.get_object(**there, Range="bytes=0-1")["Body"].read()),
            refused(lambda: client.head_object(**there)),
        ],
        "put": [
            refused(lambda: client.put_object(**new)),
            refused(
                lambda: client.put_object(
                    **{**new, "Key": f"{folder}{new_key}-once"}, IfNoneMatch="*"
                )
            ),
        ],
        "delete": [
            refused(lambda: client.delete_object(Bucket=bucket, Key=f"{folder}gone")),
            refused(bulk),
        ],
    }


@pytest.mark.parametrize("role", ROLES)
def test_the_server_refuses_requests_that_a_role_does_not_need(role: str, tried: Roles) -> None:
    bucket, client = tried.server.bucket, tried.as_role(role).client()
    for folder in FOLDERS:
        found = operations(client, bucket, f"{TRIED}/{folder}", f"of-{role}")
        for operation, answers in found.items():
            allowed = folder in ALLOWED[role].get(operation, ())
            assert answers == [not allowed] * len(answers), (operation, folder)
    for folder in ELSEWHERE:
        for operation, answers in operations(client, bucket, folder, f"of-{role}").items():
            assert all(answers), (operation, folder)
    whole = refused(lambda: client.list_objects_v2(Bucket=bucket))
    assert whole is (role not in LISTS_EVERYTHING)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_administers(role: str, tried: Roles) -> None:
    bucket, client = tried.server.bucket, tried.as_role(role).client()
    rule = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    assert refused(lambda: client.create_bucket(Bucket=f"new-{role}"))
    assert refused(lambda: client.delete_bucket(Bucket=bucket))
    assert refused(lambda: client.get_bucket_policy(Bucket=bucket))
    assert refused(lambda: client.get_bucket_versioning(Bucket=bucket))
    assert refused(
        lambda: client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [rule]}
        )
    )
    source = f"{bucket}/{TRIED}/{CREDENTIALS}there"
    if role != "broker":
        assert refused(
            lambda: client.copy_object(
                Bucket=bucket, Key=f"{TRIED}/staged/copied", CopySource=source
            )
        )


def test_the_credentials_stay_hidden_beside_a_wider_policy(tried: Roles) -> None:
    client = tried.as_role("reader-of-all").client()
    bucket = tried.server.bucket
    key = f"{TRIED}/{CREDENTIALS}there"
    assert not refused(lambda: client.put_object(Bucket=bucket, Key="another/x", Body=b""))
    assert refused(lambda: client.get_object(Bucket=bucket, Key=key))
    assert refused(lambda: client.put_object(Bucket=bucket, Key=key, Body=b""))
